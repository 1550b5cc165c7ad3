package zktest

import (
	"crypto/sha1"
	"encoding/base64"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Imitates ZooKeeper 3.8 and 3.9: setAuth (opcode 100), the digest and ip providers, ACL checks and the expansion
// of the "auth" scheme. Other schemes (sasl, x509) are refused as they are by a server without them.

// Permissions in ACL.Perms.
const (
	PermRead int32 = 1 << iota
	PermWrite
	PermCreate
	PermDelete
	PermAdmin
	PermAll int32 = 31
)

// ACL is one entry of a node's access list, in the order of the wire.
type ACL struct {
	Perms  int32  // PermRead and so on, or-ed
	Scheme string // "world", "auth", "digest" or "ip"
	ID     string // "anyone"; user:base64(sha1(user:password)); an address with an optional /bits
}

// WorldACL gives everything to everybody; it is the list of the nodes a fresh server holds.
func WorldACL() []ACL { return []ACL{{Perms: PermAll, Scheme: "world", ID: "anyone"}} }

// authID is one identity of a connection.
type authID struct{ scheme, id string }

// digestID is the identity that the credentials "user:password" give.
func digestID(credentials []byte) authID {
	user, _, _ := strings.Cut(string(credentials), ":")
	sum := sha1.Sum(credentials)
	return authID{"digest", user + ":" + base64.StdEncoding.EncodeToString(sum[:])}
}

// allowed reports whether one of ids may do perm under the list. An empty list allows everything.
func allowed(list []ACL, perm int32, ids []authID) bool {
	if len(list) == 0 {
		return true
	}
	for _, a := range list {
		if a.Perms&perm == 0 {
			continue
		}
		if a.Scheme == "world" && a.ID == "anyone" {
			return true
		}
		for _, id := range ids {
			if id.scheme == "super" {
				return true
			}
			if id.scheme == a.Scheme && matches(a.Scheme, id.id, a.ID) {
				return true
			}
		}
	}
	return slices.ContainsFunc(ids, func(id authID) bool { return id.scheme == "super" })
}

func matches(scheme, have, want string) bool {
	if scheme == "digest" {
		return have == want
	}
	addr, err := netip.ParseAddr(have)
	if err != nil {
		return false
	}
	p, err := ipPrefix(want)
	return err == nil && p.Contains(addr)
}

func ipPrefix(s string) (netip.Prefix, error) {
	host, bits, ok := strings.Cut(s, "/")
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return netip.Prefix{}, err
	}
	n := addr.BitLen()
	if ok {
		if n, err = strconv.Atoi(bits); err != nil {
			return netip.Prefix{}, err
		}
	}
	return addr.Prefix(n)
}

// fixACL checks a list given by a client and puts the client's own identities in place of the scheme "auth".
func fixACL(list []ACL, ids []authID) ([]ACL, Code) {
	var out, seen []ACL
	for _, a := range list {
		if slices.Contains(seen, a) {
			continue
		}
		seen = append(seen, a)
		switch a.Scheme {
		case "world":
			if a.ID != "anyone" {
				return nil, CodeInvalidACL
			}
			out = append(out, a)
		case "auth":
			n := len(out)
			for _, id := range ids {
				if id.scheme == "digest" {
					out = append(out, ACL{a.Perms, id.scheme, id.id})
				}
			}
			if len(out) == n {
				return nil, CodeInvalidACL
			}
		case "digest":
			if strings.Count(a.ID, ":") != 1 || strings.HasSuffix(a.ID, ":") {
				return nil, CodeInvalidACL
			}
			out = append(out, a)
		case "ip":
			if _, err := ipPrefix(a.ID); err != nil {
				return nil, CodeInvalidACL
			}
			out = append(out, a)
		default:
			return nil, CodeInvalidACL
		}
	}
	if len(out) == 0 {
		return nil, CodeInvalidACL
	}
	return out, CodeOK
}

// setAuth adds an identity to the connection. A refusal is answered and then ends the connection. It does not touch
// the session, as in the real server.
func (c *conn) setAuth(xid int32, body *decoder, f *Fault) {
	body.int32()
	scheme, auth := body.string(), body.buffer()
	if body.err != nil {
		c.drop("setAuth request: " + body.err.Error())
		return
	}
	e := newEncoder()
	var id authID
	switch scheme {
	case "digest":
		id = digestID(auth)
	case "ip":
		id = authID{"ip", c.host}
	default:
		e.header(xid, 0, CodeAuthFailed)
		c.s.logf("connection %d: no provider for auth scheme %q", c.id, scheme)
		c.send(e.frame(), f)
		c.finish("auth failed")
		return
	}
	if !slices.Contains(c.auth, id) {
		c.auth = append(c.auth, id)
	}
	e.header(xid, 0, CodeOK)
	c.send(e.frame(), f)
}
