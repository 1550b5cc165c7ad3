package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/go-zklock/zklock"
)

// ensembleFlags say which ensemble, and how.
type ensembleFlags struct {
	Servers        string        `short:"s" group:"ensemble" env:"ZKLOCK_SERVERS" placeholder:"HOST:PORT,…" help:"The servers, as in zk1:2181,zk2:2181/chroot; the port may be left out ($$${env})."`
	Root           string        `group:"ensemble" env:"ZKLOCK_ROOT" default:"/dedup" placeholder:"PATH" help:"Where keys are; the lock of key K is at PATH/K. Default ${default} ($$${env})."`
	SessionTimeout time.Duration `group:"ensemble" env:"ZKLOCK_SESSION_TIMEOUT" default:"12s" placeholder:"12s" help:"How long the ensemble keeps a lock without hearing from its holder; the servers may grant something else. A holder that is cut off is stopped earlier, one that is killed blocks the others for as long ($$${env})."`
	ConnectTimeout time.Duration `group:"ensemble" env:"ZKLOCK_CONNECT_TIMEOUT" default:"15s" placeholder:"15s" help:"How long to try to reach a server before giving up with exit code 69 ($$${env})."`
	TickTime       time.Duration `group:"ensemble" env:"ZKLOCK_TICK_TIME" placeholder:"2s" help:"The servers' tickTime. Needed if it is over 3s; twice that behind observer masters ($$${env})."`
	Trust          string        `group:"ensemble" env:"ZKLOCK_TRUST" enum:"quorum,connection" default:"quorum" placeholder:"quorum" help:"What keeps a lock alive: quorum, or connection, which saves a small write now and then and is unsafe when a server is cut off from the others ($$${env})."`
	Auth           []string      `group:"ensemble" env:"ZKLOCK_AUTH" sep:"none" placeholder:"digest:USER:PASSWORD" help:"Credentials, as SCHEME:CREDENTIALS. Others on this machine can see the command line: rather use the environment or the file ($$${env})."`
	ACL            string        `name:"acl" group:"ensemble" env:"ZKLOCK_ACL" enum:"world,creator" default:"world" placeholder:"world" help:"Who may do what with the nodes that are made: world (everybody everything) or creator (whoever has the same credentials) ($$${env})."`
	Identifier     string        `group:"ensemble" env:"ZKLOCK_IDENTIFIER" placeholder:"TEXT" help:"What others see of us in the queue. Default: host name and process id ($$${env})."`
	TLS            bool          `name:"tls" group:"ensemble" env:"ZKLOCK_TLS" help:"Connect with TLS ($$${env})."`
	TLSCA          string        `name:"tls-ca" group:"ensemble" env:"ZKLOCK_TLS_CA" placeholder:"FILE" help:"PEM file with the authorities to trust. Default: the system's ($$${env})."`
	TLSCert        string        `name:"tls-cert" group:"ensemble" env:"ZKLOCK_TLS_CERT" placeholder:"FILE" help:"PEM file with our certificate ($$${env})."`
	TLSKey         string        `name:"tls-key" group:"ensemble" env:"ZKLOCK_TLS_KEY" placeholder:"FILE" help:"PEM file with its key ($$${env})."`
	TLSServerName  string        `name:"tls-server-name" group:"ensemble" env:"ZKLOCK_TLS_SERVER_NAME" placeholder:"NAME" help:"The name in the servers' certificates. Default: the host name of each ($$${env})."`
	Verbose        bool          `short:"v" group:"ensemble" env:"ZKLOCK_VERBOSE" help:"Say what happens to the session and the lock, on standard error ($$${env})."`

	given []given // of those that say which ensemble
}

// config is the library's Config, or a usage error.
func (f *ensembleFlags) config(log io.Writer) (zklock.Config, error) {
	cfg := zklock.Config{
		Servers: []string{f.Servers}, SessionTimeout: f.SessionTimeout, TickTime: f.TickTime, Root: f.Root,
		Identifier: f.Identifier,
	}
	switch {
	case f.Servers == "":
		return cfg, usagef("no servers: give --servers HOST:PORT,… or set ZKLOCK_SERVERS; zklock serve runs one for trying things out")
	case f.Root == "":
		return cfg, usagef("--root \"\": it is empty; it has to be an absolute path, as in /dedup")
	case f.SessionTimeout <= 0:
		return cfg, usagef("--session-timeout %v: has to be more than 0", f.SessionTimeout)
	case f.ConnectTimeout <= 0:
		return cfg, usagef("--connect-timeout %v: has to be more than 0", f.ConnectTimeout)
	}
	if f.Root == "/" {
		cfg.Root = "" // keys can be there, but the library takes it for no lock's path
	}
	if f.Trust == "connection" {
		cfg.Trust = zklock.TrustConnection
	}
	for _, a := range f.Auth {
		scheme, credentials, ok := strings.Cut(a, ":")
		if !ok || scheme == "" {
			// Not the value itself: it may be a password.
			return cfg, usagef("--auth: has to be SCHEME:CREDENTIALS, as in digest:USER:PASSWORD")
		}
		cfg.Auth = append(cfg.Auth, zklock.Auth{Scheme: scheme, Credentials: []byte(credentials)})
	}
	if f.ACL == "creator" {
		if len(f.Auth) == 0 {
			return cfg, usagef("--acl creator: needs --auth, which says who the creator is")
		}
		cfg.ACL = []zk.ACL{{Perms: zk.PermAll, Scheme: "auth"}}
	}
	if f.Verbose {
		cfg.Logger = slog.New(slog.NewTextHandler(log, nil))
	}
	var err error
	cfg.TLS, err = f.tlsConfig()
	return cfg, err
}

// tlsConfig is nil without --tls.
func (f *ensembleFlags) tlsConfig() (*tls.Config, error) {
	if !f.TLS {
		if f.TLSCA+f.TLSCert+f.TLSKey+f.TLSServerName != "" {
			return nil, usagef("--tls-ca, --tls-cert, --tls-key and --tls-server-name need --tls")
		}
		return nil, nil
	}
	cfg := &tls.Config{ServerName: f.TLSServerName, MinVersion: tls.VersionTLS12}
	if f.TLSCA != "" {
		pem, err := os.ReadFile(f.TLSCA)
		if err != nil {
			return nil, usagef("--tls-ca: %w", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, usagef("--tls-ca %s: holds no certificate", f.TLSCA)
		}
	}
	if (f.TLSCert == "") != (f.TLSKey == "") {
		return nil, usagef("--tls-cert and --tls-key need one another")
	}
	if f.TLSCert != "" {
		cert, err := tls.LoadX509KeyPair(f.TLSCert, f.TLSKey)
		if err != nil {
			return nil, usagef("--tls-cert and --tls-key: %w", err)
		}
		cfg.Certificates = []tls.Certificate{cert}
	}
	return cfg, nil
}

// connect opens a session, and says what to do if that fails.
func (f *ensembleFlags) connect(ctx context.Context, log io.Writer) (*zklock.Client, error) {
	client, err := f.open(ctx, log)
	if exitCode(err) == exitUnavailable {
		return nil, exitf(exitUnavailable, "%w\n%s says more", err, f.hint("doctor"))
	}
	return client, err
}

// open opens a session.
func (f *ensembleFlags) open(ctx context.Context, log io.Writer) (*zklock.Client, error) {
	cfg, err := f.config(log)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, f.ConnectTimeout,
		expired(fmt.Sprintf("no server was ready within --connect-timeout %v", f.ConnectTimeout)))
	defer cancel()
	client, err := zklock.Connect(ctx, cfg)
	switch {
	case err == nil, errors.Is(err, zklock.ErrInvalidConfig):
		return client, err
	case errors.Is(err, zklock.ErrAuthFailed):
		return nil, &exitError{exitNoPermission, err}
	default:
		return nil, &exitError{exitUnavailable, err}
	}
}

// refused turns an answer of the ensemble to a request, or that there was none, into an
// exit code.
func refused(err error) error {
	if coded := new(exitError); errors.As(err, &coded) {
		return err
	}
	switch {
	case errors.Is(err, zk.ErrNoAuth), errors.Is(err, zklock.ErrAuthFailed):
		return exitf(exitNoPermission, "%w; --auth gives credentials", err)
	case away(err):
		return exitf(exitUnavailable, "the ensemble went away: %w", err)
	}
	return err
}
