package zklock

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/go-zklock/zklock/zktest"
)

func TestChroot(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		in := b.connect(func(cfg *Config) { cfg.Servers = []string{b.srv.Addr() + "/app/locks"} })
		if b.srv.Exists("/app") {
			t.Error("Connect made the chroot; the first lock does")
		}
		m := b.mutex(in, "/dedup/a")
		l := b.acquire(m)
		const full = "/app/locks/dedup/a"
		if !strings.HasPrefix(l.Path(), full+"/_c_") || !b.srv.Exists(l.Path()) || m.Path() != "/dedup/a" {
			t.Errorf("the node is %s, the mutex's path %s", l.Path(), m.Path())
		}
		if ps := b.list(m); len(ps) != 1 || ps[0].Path != l.Path() {
			t.Errorf("participants %+v", ps)
		}
		// Paths that come out work on Conn as they are.
		if ok, _, err := in.Conn().Exists(l.Path()); err != nil || !ok {
			t.Errorf("Conn does not find %s: %v", l.Path(), err)
		}
		if g := l.Guard(); g.Path != l.Path() {
			t.Errorf("the guard is on %s", g.Path)
		}
		// It is the same lock as that of a client without chroot, and not that of its root.
		out := b.connect()
		_, err := b.mutex(out, full).TryAcquire(t.Context())
		wantErr(t, err, ErrHeld)
		b.release(b.acquire(b.mutex(out, "/dedup/a")))
		b.release(l)
		b.release(b.acquire(b.mutex(out, full)))
	})
}

// A connect string with a name that does not resolve: the others serve, from
// whichever the client starts with.
func TestOneBadHostAmongGoodOnes(t *testing.T) {
	for seed := range uint64(6) {
		inBubble(t, func(b *bundle) {
			t := b.t
			start := time.Now()
			c := b.connect(func(cfg *Config) {
				cfg.Seed = seed + 1
				cfg.Servers = []string{"nowhere.invalid:2181," + b.srv.Addr() + ",gone.invalid"}
				cfg.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
					if addr != b.srv.Addr() {
						return nil, &net.OpError{Op: "dial", Net: network, Err: &net.DNSError{Err: "no such host", Name: addr, IsNotFound: true}}
					}
					return b.srv.Dial(ctx, network, addr)
				}
			})
			if d := time.Since(start); d > 50*time.Millisecond {
				t.Errorf("seed %d: connected after %v; a name that fails at once must cost nothing", seed+1, d)
			}
			l := b.acquire(b.mutex(c, "/dedup/a"))
			b.srv.CutConnections()
			must(t, awaitState(c, Suspended))
			must(t, l.Await(t.Context()))
			b.release(l)
		})
	}
}

// authority makes certificates, with itself as the only root.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{}
	a.cert, a.key = a.sign(t, &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	return a
}

func (a *authority) sign(t *testing.T, tmpl *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	tmpl.SerialNumber = big.NewInt(time.Now().UnixNano())
	tmpl.NotBefore, tmpl.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := tmpl, key
	if a.cert != nil {
		parent, signer = a.cert, a.key
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, &key.PublicKey, signer)
	must(t, err)
	cert, err := x509.ParseCertificate(der)
	must(t, err)
	return cert, key
}

func (a *authority) server(t *testing.T, name string) *tls.Config {
	t.Helper()
	cert, key := a.sign(t, &x509.Certificate{DNSNames: []string{name}})
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{cert.Raw}, PrivateKey: key}}}
}

func (a *authority) client() *tls.Config {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return &tls.Config{RootCAs: pool}
}

// front puts TLS before a server.
func (b *bundle) front(cfg *tls.Config) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, _ string) (net.Conn, error) {
		plain, err := b.srv.Dial(ctx, network, b.srv.Addr())
		if err != nil {
			return nil, err
		}
		client, server := net.Pipe()
		secure := tls.Server(server, cfg)
		pass := func(to, from net.Conn) {
			_, _ = io.Copy(to, from)
			_ = plain.Close()
			_ = server.Close()
		}
		go pass(plain, secure)
		go pass(secure, plain)
		return client, nil
	}
}

func TestTLS(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		ca := newAuthority(t)
		dial := b.front(ca.server(t, "zk1.example.org"))
		overTLS := func(cfg *Config) {
			cfg.Servers, cfg.Dial, cfg.TLS = []string{"zk1.example.org:2281"}, dial, ca.client()
			cfg.SessionTimeout = 4 * time.Second
			cfg.TickTime = 500 * time.Millisecond
		}
		c := b.connect(overTLS, func(cfg *Config) { cfg.Auth = []Auth{{"digest", []byte("u:p")}} })
		m := b.mutex(c, "/dedup/a")
		l := b.acquire(m)
		b.srv.CutConnections()
		must(t, awaitState(c, Suspended))
		must(t, l.Await(t.Context())) // TLS again on the next connection
		b.release(l)
		if c.cfg.TLS.ServerName != "" {
			t.Error("the caller's TLS config was changed")
		}
		must(t, c.Close())

		// The name that was dialled is the one that is verified.
		cfg := Config{Clock: zktest.Clock{}, Seed: 1}
		overTLS(&cfg)
		cfg.Servers = []string{"zk2.example.org:2281"}
		_, err := connectError(t, cfg)
		var name x509.HostnameError
		wantErr(t, err, context.DeadlineExceeded, "TLS with zk2.example.org:2281", "zk1.example.org")
		if !errors.As(err, &name) {
			t.Errorf("no x509.HostnameError in %v", err)
		}
		// Unless the config names another one.
		cfg.TLS = ca.client()
		cfg.TLS.ServerName = "zk1.example.org"
		c, err = Connect(t.Context(), cfg)
		must(t, err)
		must(t, c.Close())
		// A certificate of somebody else's.
		cfg.TLS = newAuthority(t).client()
		cfg.TLS.ServerName = "zk1.example.org"
		_, err = connectError(t, cfg)
		wantErr(t, err, context.DeadlineExceeded, "certificate signed by unknown authority")
		// A plain server behind a TLS client: the dial limit ends it.
		cfg.Dial = b.srv.Dial
		cfg.Servers = []string{b.srv.Addr()}
		_, err = connectError(t, cfg)
		wantErr(t, err, context.DeadlineExceeded, "server "+b.srv.Addr())
	})
}
