package zktest

import (
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func testPipe(n *network) (*memConn, *memConn) { return newPipe(n, "", "a", "b") }

func arrivals(t *testing.T, seed uint64) (at []time.Duration, got []byte) {
	t.Helper()
	a, b := testPipe(newNetwork(10*time.Millisecond, 20*time.Millisecond, seed))
	start := time.Now()
	go func() {
		for i := range byte(50) {
			if _, err := a.Write([]byte{i}); err != nil {
				t.Error(err)
			}
			time.Sleep(time.Millisecond)
		}
		a.Close()
	}()
	var p [1]byte
	for {
		_, err := b.Read(p[:])
		if errors.Is(err, io.EOF) {
			return at, got
		}
		if err != nil {
			t.Fatal(err)
		}
		at = append(at, time.Since(start))
		got = append(got, p[0])
	}
}

// TestPipeOrder sees jitter delay messages and never reorder them, the same way for the same seed.
func TestPipeOrder(t *testing.T) {
	t.Parallel()
	run := func(seed uint64) (at []time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			var got []byte
			at, got = arrivals(t, seed)
			if len(got) != 50 || !slices.IsSorted(got) || !slices.IsSorted(at) {
				t.Errorf("arrived: %v at %v", got, at)
			}
			for i, d := range at {
				sent := time.Duration(i) * time.Millisecond
				if d < sent+10*time.Millisecond || d > sent+30*time.Millisecond {
					t.Errorf("message %d took %v", i, d-sent)
				}
			}
		})
		return at
	}
	first, again, other := run(1), run(1), run(2)
	if !slices.Equal(first, again) || slices.Equal(first, other) {
		t.Errorf("the delays do not follow from the seed: %v, %v, %v", first, again, other)
	}
}

// TestPipeDelays sees the delay of a message depend on the seed, the client's name, the direction and the instant, and
// on nothing that is sent at the same instant.
func TestPipeDelays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const jitter = time.Second
		n := newNetwork(time.Second, jitter, 1)
		way := n.route("a", routeUp)
		seen := map[time.Duration]bool{n.delay(way): true}
		if !seen[n.delay(way)] {
			t.Error("two messages of one instant have different delays")
		}
		for _, other := range []route{n.route("b", routeUp), n.route("a", routeDown), newNetwork(0, 0, 2).route("a", routeUp)} {
			seen[n.delay(other)] = true
		}
		for range 100 {
			time.Sleep(time.Nanosecond)
			seen[n.delay(way)] = true
		}
		if len(seen) != 104 {
			t.Errorf("%d different delays of 104", len(seen))
		}
		least, most := 2*jitter, time.Duration(0)
		for d := range seen {
			least, most = min(least, d), max(most, d)
		}
		if least < time.Second || least > 1100*time.Millisecond || most < 1900*time.Millisecond || most > 2*time.Second {
			t.Errorf("delays from %v to %v", least, most)
		}
	})
}

func TestPipeDeadlines(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, b := testPipe(newNetwork(0, 0, 0))
		start := time.Now()
		a.SetReadDeadline(start.Add(time.Second))
		_, err := a.Read(make([]byte, 1))
		var ne net.Error
		if !errors.Is(err, os.ErrDeadlineExceeded) || !errors.As(err, &ne) || !ne.Timeout() || time.Since(start) != time.Second {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		// A deadline moved while a read waits counts for that read.
		a.SetReadDeadline(time.Time{})
		go func() {
			time.Sleep(time.Second)
			a.SetReadDeadline(time.Now())
		}()
		if _, err := a.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("interrupted read: %v", err)
		}
		// Nobody reads: the buffer fills up and the write deadline ends the wait.
		a.SetWriteDeadline(time.Now().Add(time.Second))
		chunk := make([]byte, 1<<20)
		var n int
		for n = 0; ; n++ {
			if _, err = a.Write(chunk); err != nil {
				break
			}
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) || n < 4 || n > 6 {
			t.Errorf("%d MiB buffered, then %v", n, err)
		}
		// Reading makes room.
		a.SetWriteDeadline(time.Time{})
		go func() { _, _ = io.CopyN(io.Discard, b, 6<<20) }()
		if _, err := a.Write(chunk); err != nil {
			t.Error(err)
		}
		b.Close()
	})
}

func TestPipeClose(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, b := testPipe(newNetwork(5*time.Millisecond, 0, 0))
		if _, err := a.Write([]byte("last")); err != nil {
			t.Fatal(err)
		}
		a.Close()
		if got, err := io.ReadAll(b); string(got) != "last" || err != nil {
			t.Errorf("%q, %v", got, err)
		}
		if _, err := a.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("read on a closed end: %v", err)
		}
		if _, err := a.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
			t.Errorf("write on a closed end: %v", err)
		}
		if _, err := b.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
			t.Errorf("write to a closed end: %v", err)
		}
		// Until the news has travelled, a write succeeds and its bytes are lost.
		a, b = testPipe(newNetwork(5*time.Millisecond, 0, 0))
		a.Close()
		if _, err := b.Write([]byte("x")); err != nil {
			t.Errorf("write before the close is known: %v", err)
		}
		b.Close()
	})
}

// TestPipeCloseComesLast writes into a connection that the peer is closing: that fails only once everything the peer had
// sent before has arrived.
func TestPipeCloseComesLast(t *testing.T) {
	t.Parallel()
	for seed := range uint64(50) {
		synctest.Test(t, func(t *testing.T) {
			a, b := testPipe(newNetwork(time.Millisecond, 50*time.Millisecond, seed))
			if _, err := b.Write([]byte("last")); err != nil {
				t.Fatal(err)
			}
			b.Close()
			for {
				if _, err := a.Write([]byte("x")); err != nil {
					break
				}
				time.Sleep(time.Millisecond)
			}
			a.SetReadDeadline(time.Now().Add(time.Nanosecond))
			if got, err := io.ReadAll(a); string(got) != "last" || err != nil {
				t.Errorf("seed %d: %q, %v is there when a write fails", seed, got, err)
			}
		})
	}
}
