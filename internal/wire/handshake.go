package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"time"
)

// handshake reads the connect response, sends the credentials and waits until
// each has been accepted, and only then lets the library see the response. So
// nothing can run on a session that is not ours, or before its credentials.
func (c *Conn) handshake() error {
	// The library's own deadline is ten times 2/3 T for the first four bytes and
	// none for the rest: a peer that sends half a response would hang it for ever.
	deadline := time.Now().Add(c.limit)
	if err := c.Conn.SetDeadline(deadline); err != nil {
		return err
	}
	frame, err := c.readFrame(maxHandshakeFrame)
	if err != nil {
		return c.handshakeError(err)
	}
	h, err := parseConnectResponse(frame[4:])
	if err != nil {
		return err
	}
	response := append([]byte(nil), frame...)

	c.mu.Lock()
	h.Sent = c.connect.sent
	c.connect.answered = c.now()
	c.timeout = h.Timeout
	c.mu.Unlock()
	delay, err := c.events.Handshake(c, h)
	if err != nil {
		return err
	}
	if err := c.authenticate(); err != nil {
		return c.handshakeError(err)
	}
	if err := c.Conn.SetDeadline(time.Time{}); err != nil {
		return err
	}
	c.mu.Lock()
	if c.killed != nil {
		err := c.killed
		c.mu.Unlock()
		return err
	}
	c.delay = delay
	c.ready = true
	c.mu.Unlock()
	c.out = response
	c.events.Up(c)
	return nil
}

// handshakeError turns what a socket says into what happened.
func (c *Conn) handshakeError(err error) error {
	var nerr net.Error
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, &nerr) && nerr.Timeout() {
		return fmt.Errorf("%w (%v)", ErrHandshakeTimeout, c.limit)
	}
	if head, perr := c.in.Peek(min(c.in.Buffered(), 16)); perr == nil && len(head) >= 4 {
		if n := int(binary.BigEndian.Uint32(head)); n > maxHandshakeFrame {
			return &NotZooKeeperError{Start: append([]byte(nil), head...), Why: fmt.Sprintf("a connect response of %d bytes", n)}
		}
	}
	return err
}

func parseConnectResponse(b []byte) (Handshake, error) {
	// protocol version, timeout, session id, password length; then the password
	// and, since 3.4, one byte that says "read only".
	if len(b) < 20 {
		return Handshake{}, &NotZooKeeperError{Start: append([]byte(nil), b[:min(len(b), 16)]...), Why: fmt.Sprintf("a connect response of %d bytes", len(b))}
	}
	timeout := int32(binary.BigEndian.Uint32(b[4:]))
	id := int64(binary.BigEndian.Uint64(b[8:]))
	password := int32(binary.BigEndian.Uint32(b[16:]))
	if password < -1 || int(password) > len(b)-20 {
		return Handshake{}, &NotZooKeeperError{Start: append([]byte(nil), b[:16]...), Why: "a connect response whose password is longer than itself"}
	}
	if id != 0 && timeout <= 0 {
		return Handshake{}, &NotZooKeeperError{Start: append([]byte(nil), b[:16]...), Why: fmt.Sprintf("a session timeout of %d ms", timeout)}
	}
	return Handshake{SessionID: id, Timeout: time.Duration(timeout) * time.Millisecond}, nil
}

// authenticate sends every credential and reads its answer. The library is given
// none: it would hang on a connection that breaks just then.
func (c *Conn) authenticate() error {
	for _, a := range c.auth {
		if _, err := c.Conn.Write(authFrame(a)); err != nil {
			return err
		}
	}
	for _, a := range c.auth {
		frame, err := c.readFrame(maxHandshakeFrame)
		if err != nil {
			return err
		}
		if len(frame) < 20 {
			return fmt.Errorf("an answer of %d bytes to the %q credentials", len(frame), a.Scheme)
		}
		if xid := int32(binary.BigEndian.Uint32(frame[4:])); xid != xidAuth {
			return fmt.Errorf("an answer to request %d where the one to the %q credentials was due", xid, a.Scheme)
		}
		if code := int32(binary.BigEndian.Uint32(frame[16:])); code != codeOK {
			return &AuthError{Scheme: a.Scheme, Code: code}
		}
	}
	return nil
}

func authFrame(a Auth) []byte {
	// xid, opcode, type (always 0), scheme, credentials.
	n := 4 + 4 + 4 + 4 + len(a.Scheme) + 4 + len(a.Data)
	f := make([]byte, 0, 4+n)
	xid := int32(xidAuth)
	f = binary.BigEndian.AppendUint32(f, uint32(n))
	f = binary.BigEndian.AppendUint32(f, uint32(xid))
	f = binary.BigEndian.AppendUint32(f, opSetAuth)
	f = binary.BigEndian.AppendUint32(f, 0)
	f = binary.BigEndian.AppendUint32(f, uint32(len(a.Scheme)))
	f = append(f, a.Scheme...)
	f = binary.BigEndian.AppendUint32(f, uint32(len(a.Data)))
	return append(f, a.Data...)
}
