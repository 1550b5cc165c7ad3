// Package expire ends sessions from outside.
package expire

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
)

// The answer to a request for a session: its length, the version, the timeout, the session id, and the password with
// its length.
const greetingSize = 4 + 4 + 4 + 8 + 4 + 16

// GreetingSize is how many bytes of a server's answer Session needs.
const GreetingSize = greetingSize

// Session ends the session of a greeting, which is what its server answered first, over a connection to another server
// than the owner's, as a second process with the same id and password does. To the owner that is an expiry. (On the
// owner's server the two connections would close each other.)
func Session(ctx context.Context, server string, greeting []byte) error {
	if len(greeting) < greetingSize {
		return fmt.Errorf("only %d bytes of the greeting were seen", len(greeting))
	}
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", server)
	if err != nil {
		return err
	}
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return err
		}
	}
	// Version 0, no zxid seen, the timeout, the session and its password.
	request := binary.BigEndian.AppendUint32(nil, 44)
	request = append(request, make([]byte, 12)...)
	request = append(request, greeting[8:greetingSize]...)
	// Then xid 1, closeSession.
	request = binary.BigEndian.AppendUint32(request, 8)
	request = binary.BigEndian.AppendUint32(request, 1)
	request = binary.BigEndian.AppendUint32(request, 0xfffffff5)
	if _, err := conn.Write(request); err != nil {
		return err
	}
	answer := make([]byte, greetingSize)
	if _, err := io.ReadFull(conn, answer); err != nil {
		return fmt.Errorf("resume the session: %w", err)
	}
	if string(answer[12:20]) != string(greeting[12:20]) {
		return fmt.Errorf("resumed session %x, want %x", answer[12:20], greeting[12:20])
	}
	_, err = io.Copy(io.Discard, conn) // until the server has closed it
	return err
}
