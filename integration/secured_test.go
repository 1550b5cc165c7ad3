package integration

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/integration/zkcluster"
	"github.com/go-zklock/zklock/integration/zkproxy"
)

// authority is a certificate authority of a test's own.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, "key", err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "zklock test"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	must(t, "certificate", err)
	cert, err := x509.ParseCertificate(der)
	must(t, "certificate", err)
	return &authority{cert, key}
}

// pool is what a client trusts.
func (a *authority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// issue makes a key and a certificate for an address, in PEM.
func (a *authority) issue(ip net.IP) ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "server"}, IPAddresses: []net.IP{ip},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		return nil, err
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return append(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}),
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})...), nil
}

// securedTick is not the tick that servers have by default.
const securedTick = time.Second

// startSecured starts servers with a TLS port beside the plain one, which the harness uses, with the four-letter words
// closed (but for srvr, which cannot be) and without local sessions.
func startSecured(t *testing.T, ca *authority) *zkcluster.Cluster {
	t.Helper()
	return zkcluster.Start(t, zkcluster.Options{
		Servers: 3, TickTime: securedTick,
		Env: map[string]string{
			"ZOO_4LW_COMMANDS_WHITELIST": "ruok",
			"ZOO_CFG_EXTRA": "secureClientPort=2281 serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory " +
				"ssl.keyStore.location=/conf/server.pem ssl.trustStore.location=/conf/ca.pem ssl.clientAuth=none localSessionsEnabled=false",
		},
		Files: func(s *zkcluster.Server) (map[string][]byte, error) {
			server, err := ca.issue(s.ClientIP())
			return map[string][]byte{
				"/conf/server.pem": server,
				"/conf/ca.pem":     pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.cert.Raw}),
			}, err
		},
	})
}

// refusedConnect expects that a client gets no session, and an error that names the reason.
func refusedConnect(t *testing.T, what string, cfg zklock.Config, reasons ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	c, err := zklock.Connect(ctx, cfg)
	if err == nil {
		_ = c.Close()
		t.Errorf("%s: connected", what)
		return
	}
	t.Logf("%s: %v", what, err)
	for _, reason := range reasons {
		if strings.Contains(err.Error(), reason) {
			return
		}
	}
	t.Errorf("%s: the error names none of %q", what, reasons)
}

// An ensemble as people secure it: TLS with a CA of their own, digest authentication, ACLs that let nobody else in, a
// chroot; and its own tick, no local sessions, closed four-letter words.
func TestSecuredEnsemble(t *testing.T) {
	ca := newAuthority(t)
	cluster := startSecured(t, ca)
	ctx := bounded(t)
	const chroot = "/tenant"
	acl := zk.DigestACL(zk.PermAll, "app", "secret")
	operator := observe(t, cluster.Server(0))
	must(t, "auth of the operator", operator.AddAuth("digest", []byte("app:secret")))
	_, err := operator.Create(chroot, nil, 0, acl)
	must(t, "make the chroot", err)

	var secure []string
	for _, s := range cluster.Servers() {
		secure = append(secure, s.SecureAddr())
	}
	servers := strings.Join(secure, ",") + chroot
	ours := func(timeout time.Duration, opts ...func(*zklock.Config)) *zklock.Client {
		return clientOf(t, []string{servers}, timeout, append(opts, func(cfg *zklock.Config) {
			cfg.TickTime = securedTick
			cfg.TLS = &tls.Config{RootCAs: ca.pool(), MinVersion: tls.VersionTLS12}
			cfg.Auth = []zklock.Auth{{Scheme: "digest", Credentials: []byte("app:secret")}}
			cfg.ACL = acl
		})...)
	}

	t.Run("refused", func(t *testing.T) {
		p := zkproxy.New(t, cluster.Server(0).SecureAddr()) // its address is in no certificate
		for _, tc := range []struct {
			what    string
			cfg     zklock.Config
			reasons []string
		}{
			{"another host name", zklock.Config{Servers: []string{p.Addr()}, TLS: &tls.Config{RootCAs: ca.pool(), MinVersion: tls.VersionTLS12}}, []string{"not 127.0.0.1"}},
			{"another CA", zklock.Config{Servers: secure, TLS: &tls.Config{RootCAs: newAuthority(t).pool(), MinVersion: tls.VersionTLS12}}, []string{"unknown authority"}},
			{"no TLS on a TLS port", zklock.Config{Servers: secure}, []string{"EOF", "reset by peer", secure[0]}},
		} {
			tc.cfg.TickTime = securedTick
			refusedConnect(t, tc.what, tc.cfg, tc.reasons...)
		}
	})

	t.Run("strangers", func(t *testing.T) {
		l := acquire(t, mutexOf(t, ours(20*time.Second), "/locks/strangers"))
		stranger := clientOf(t, []string{servers}, 20*time.Second, func(cfg *zklock.Config) {
			cfg.TickTime = securedTick
			cfg.TLS = &tls.Config{RootCAs: ca.pool(), MinVersion: tls.VersionTLS12}
		})
		_, err := mutexOf(t, stranger, "/locks/strangers").Acquire(ctx)
		t.Logf("a stranger's Acquire: %v", err)
		isErr(t, "a stranger's Acquire", err, zklock.ErrNotAcquired, zk.ErrNoAuth)
		must(t, "the holder", l.Verify(ctx))
		if there, _, err := operator.Exists(l.Path()); err != nil || !there || !strings.HasPrefix(l.Path(), chroot+"/") {
			t.Errorf("the node %s is not below the chroot: %v, %v", l.Path(), there, err)
		}
		got, _, err := operator.GetACL(l.Path())
		must(t, "ACL of the node", err)
		if fmt.Sprint(got) != fmt.Sprint(acl) {
			t.Errorf("the node's ACL is %v, want %v", got, acl)
		}
		release(t, l)
	})

	t.Run("reconnects", func(t *testing.T) {
		registry := prometheus.NewRegistry()
		c := ours(20*time.Second, func(cfg *zklock.Config) { cfg.Registerer = registry })
		st := watchStates(t, c)
		l := acquire(t, mutexOf(t, c, "/locks/reconnects"))
		node, token := l.Path(), l.Token()
		waiter := acquireAsync(ctx, mutexOf(t, ours(20*time.Second), "/locks/reconnects"))
		awaitNodes(t, operator, chroot+"/locks/reconnects", 2)
		for _, s := range cluster.Servers() {
			must(t, "restart", s.Restart(ctx))
			must(t, "quorum", cluster.WaitQuorum(ctx))
		}
		st.await(t, zklock.Reconnected, 1)
		must(t, "Await", l.Await(ctx))
		held(t, l, node, token)
		t.Logf("states over three restarts: %v", st)
		// Who waits and who holds can still delete: the credentials were sent again.
		release(t, l)
		release(t, granted(t, "the waiter", waiter))
		// ZooKeeper keeps srvr open whatever the list says, and no other word is used.
		eventually(t, "zk_ensemble_size and zk_quorum_size", func() bool {
			return metric(t, registry, "zk_ensemble_size") == 3 && metric(t, registry, "zk_quorum_size") == 3
		})
	})

	t.Run("new session", func(t *testing.T) {
		c := ours(4 * time.Second)
		session := c.SessionID()
		m := mutexOf(t, c, "/locks/session")
		l := acquire(t, m)
		for _, s := range cluster.Servers() {
			must(t, "pause", s.Pause(ctx))
		}
		await(t, "loss", l.Lost())
		isErr(t, "Release", l.Release(ctx), zklock.ErrLost)
		must(t, "heal", cluster.Heal(ctx))
		again := acquire(t, m)
		if c.SessionID() == session {
			t.Errorf("the session is still %x", session)
		}
		if again.Token() <= l.Token() {
			t.Errorf("token %v after %v", again.Token(), l.Token())
		}
		release(t, again)
		if left := nodes(t, operator, chroot+"/locks/session"); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
	})

	t.Run("fresh chroot", func(t *testing.T) {
		short, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		// It is made with the first lock, like every other parent.
		c, err := zklock.Connect(short, zklock.Config{
			Servers: []string{strings.Join(secure, ",") + "/fresh/tenant"}, TickTime: securedTick,
			TLS: &tls.Config{RootCAs: ca.pool(), MinVersion: tls.VersionTLS12},
		})
		must(t, "connect", err)
		defer c.Close()
		l, err := mutexOf(t, c, "/lock").Acquire(short)
		must(t, "acquire below a chroot that is not there", err)
		release(t, l)
	})
}
