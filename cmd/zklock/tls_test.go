//go:build linux

package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zklock/zklock/zktest"
)

// authority makes certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string // with the certificate
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{key: newKey(t)}
	a.cert = a.sign(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: "a test's authority"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}, a.key)
	a.file = pemFile(t, "CERTIFICATE", a.cert.Raw)
	return a
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// sign completes a certificate. The authority's own is the first.
func (a *authority) sign(t *testing.T, cert *x509.Certificate, key *ecdsa.PrivateKey) *x509.Certificate {
	t.Helper()
	cert.SerialNumber = big.NewInt(time.Now().UnixNano())
	cert.NotBefore, cert.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent := a.cert
	if parent == nil {
		parent = cert
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, parent, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return signed
}

// issue makes a certificate and its key, for a server with names or for a client.
func (a *authority) issue(t *testing.T, names ...string) (certFile, keyFile string) {
	t.Helper()
	key := newKey(t)
	cert := a.sign(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: "a test"}, DNSNames: names, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, key)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pemFile(t, "CERTIFICATE", cert.Raw), pemFile(t, "PRIVATE KEY", der)
}

func pemFile(t *testing.T, kind string, der []byte) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "pem")
	if err := os.WriteFile(name, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// throughTLS is the address of a TLS listener before a server.
func throughTLS(t *testing.T, srv *zktest.Server, cfg *tls.Config) string {
	t.Helper()
	listener, err := tls.Listen("tcp", "127.0.0.1:0", cfg)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	serve := func(client net.Conn) {
		server, err := net.Dial("tcp", srv.Addr())
		if err != nil {
			_ = client.Close()
			return
		}
		wg.Go(func() {
			_, _ = io.Copy(server, client) // fails too when the handshake does
			_ = server.Close()
		})
		_, _ = io.Copy(client, server)
		_ = client.Close()
	}
	wg.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return // closed
			}
			wg.Go(func() { serve(client) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		srv.CutConnections()
		wg.Wait()
	})
	return listener.Addr().String()
}

// The flags of TLS, against a listener that speaks it and asks for certificates.
func TestTLS(t *testing.T) {
	t.Parallel()
	srv := server(t, steady, func(c *zktest.Config) { c.FourLetterWords = []string{"srvr", "conf"} })
	ours, another := newAuthority(t), newAuthority(t)
	pair, err := tls.LoadX509KeyPair(ours.issue(t, "zk.test"))
	if err != nil {
		t.Fatal(err)
	}
	clients := x509.NewCertPool()
	clients.AddCert(ours.cert)
	addr := throughTLS(t, srv, &tls.Config{
		Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients, MinVersion: tls.VersionTLS12,
	})
	certFile, keyFile := ours.issue(t)
	strangeCert, strangeKey := another.issue(t)
	// with is zklock with the flags, the given ones instead of those that work.
	with := func(t *testing.T, args, instead []string) *process {
		t.Helper()
		flags := map[string]string{
			"--servers": addr, "--tls-ca": ours.file, "--tls-cert": certFile, "--tls-key": keyFile, "--tls-server-name": "zk.test", "--connect-timeout": "15s",
		}
		for i := 0; i < len(instead); i += 2 {
			flags[instead[i]] = instead[i+1]
		}
		all := []string{args[0], "--tls"}
		for name, value := range flags {
			if value != "" {
				all = append(all, name, value)
			}
		}
		return start(t, command(append(all, args[1:]...)...))
	}

	s := newScript(t)
	holder := with(t, append([]string{"run", "--key", "k", "--identifier", "over-tls", "--"}, s.argv()...), nil)
	s.running(t)
	ls := with(t, []string{"ls"}, nil)
	ls.exits(t, 0, "")
	if !strings.Contains(ls.out.String(), "over-tls") {
		t.Errorf("ls: %s", ls.out)
	}
	doctor := with(t, []string{"doctor"}, nil)
	doctor.exits(t, 0, "")
	for _, want := range []string{"ok    server " + addr + ": standalone", "ok    four-letter words: 1 of 1", "ok    writes: "} {
		if !strings.Contains(doctor.out.String(), want) {
			t.Errorf("doctor does not say %q:\n%s", want, doctor.out)
		}
	}
	s.end(t)
	holder.exits(t, 5, "")

	// It is not enough that somebody answers.
	for _, tc := range []struct {
		name    string
		instead []string
		says    string
	}{
		{"another name", []string{"--tls-server-name", "other.test"}, "certificate is valid for zk.test, not other.test"},
		{"no name", []string{"--tls-server-name", ""}, "cannot validate certificate for 127.0.0.1"},
		{"an unknown authority", []string{"--tls-ca", another.file}, "certificate signed by unknown authority"},
		{"the system's authorities", []string{"--tls-ca", ""}, "certificate signed by unknown authority"},
		{"no certificate of ours", []string{"--tls-cert", "", "--tls-key", ""}, "certificate required"},
		{"a certificate that the server does not know", []string{"--tls-cert", strangeCert, "--tls-key", strangeKey}, "unknown certificate authority"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			instead := append(slices.Clone(tc.instead), "--connect-timeout", "5s") // time for a handshake
			ls, doctor := with(t, []string{"ls"}, instead), with(t, []string{"doctor"}, instead)
			run := with(t, []string{"run", "--key", "k", "--", "true"}, instead)
			ls.exits(t, 69, tc.says)
			run.exits(t, 69, tc.says)
			doctor.exits(t, 69, "")
			if first, _, _ := strings.Cut(doctor.out.String(), "\n"); !strings.HasPrefix(first, "fail  server "+addr) || !strings.Contains(first, tc.says) {
				t.Errorf("doctor does not say %q:\n%s", tc.says, doctor.out)
			}
		})
	}

	// Without --tls nobody understands the other.
	start(t, command("ls", "--servers", addr, "--connect-timeout", "2s")).exits(t, 69, "server "+addr)
}
