//go:build linux

package main

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/go-zklock/zklock/zktest"
)

// lineEnd ends a line of a frame, behind the terminal's own \r before each \n.
const lineEnd = "\x1b[K\r\r\n"

// frame is the last whole frame on a screen, a line for each row.
func (p *person) frame() []string {
	frames := strings.Split(p.screen.String(), "\x1b[H")
	for i := len(frames) - 1; i > 0; i-- {
		if text, _, whole := strings.Cut(frames[i], "\x1b[J"); whole {
			return strings.Split(strings.TrimSuffix(text, lineEnd), lineEnd)
		}
	}
	return nil
}

// What does not fit on the screen would push the first lines out at its top, for each
// look anew.
func TestTerminalShowsWhatFits(t *testing.T) {
	t.Parallel()
	srv := server(t, steady)
	if err := srv.Create("/dedup", nil); err != nil {
		t.Fatal(err)
	}
	for i := range 40 {
		if err := srv.Create(fmt.Sprintf("/dedup/key-%02d", i), nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := srv.Create("/dedup/"+strings.Repeat("a", 200), nil); err != nil {
		t.Fatal(err)
	}
	p := atTerminal(t, srv, command("ls", "--watch", "--interval", "1h"))
	fits := func(rows, columns, more int) {
		t.Helper()
		eventually(t, fmt.Sprintf("a frame of %d rows", rows-1), func() bool { return len(p.frame()) == rows-1 })
		frame := p.frame()
		if got, want := frame[len(frame)-1], fmt.Sprintf("… and %d more", more); got != want {
			t.Errorf("the last line is %q, want %q", got, want)
		}
		if !strings.HasPrefix(frame[0], "KEY ") {
			t.Errorf("the first line is %q", frame[0])
		}
		for _, line := range frame {
			if n := len([]rune(line)); n > columns {
				t.Errorf("a line of %d columns: %q", n, line)
			}
		}
	}
	fits(24, 100, 42-22)
	if err := unix.IoctlSetWinsize(int(p.slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 10, Col: 40}); err != nil {
		t.Fatal(err)
	}
	fits(10, 40, 42-8)
	// The terminal does not wrap either what is wider than it seems.
	if got := p.screen.String(); strings.Count(got, "\x1b[?7l") != strings.Count(got, "\x1b[?7h") || !strings.Contains(got, "\x1b[?7l\x1b[H") {
		t.Errorf("lines wrap, or do not wrap any more: %q", got)
	}
	p.types(t, ctrlC)
	if code := p.code(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// vanish takes the server away.
func vanish(srv *zktest.Server) {
	srv.Refuse(true)
	srv.CutConnections()
}

// A person who watches goes on watching when the ensemble goes away and comes back.
func TestTerminalShowsThatTheEnsembleIsAway(t *testing.T) {
	t.Parallel()
	srv := server(t, steady)
	for _, path := range []string{"/dedup", "/dedup/k"} {
		if err := srv.Create(path, nil); err != nil {
			t.Fatal(err)
		}
	}
	p := atTerminal(t, srv, command("ls", "--watch", "--interval", "20ms"))
	eventually(t, "it shows the key", func() bool { f := p.frame(); return len(f) == 2 && strings.HasPrefix(f[1], "k ") })
	for _, sessionLost := range []bool{false, true} {
		vanish(srv)
		eventually(t, "it says that the ensemble is away, below the key", func() bool {
			f := p.frame()
			return len(f) == 3 && strings.HasPrefix(f[1], "k ") && regexp.MustCompile(`^the ensemble is away since \d\d:\d\d:\d\d$`).MatchString(f[2])
		})
		if sessionLost {
			for _, s := range srv.Sessions() {
				srv.Expire(s.ID)
			}
		}
		srv.Refuse(false)
		eventually(t, "it shows the key only", func() bool { f := p.frame(); return len(f) == 2 && strings.HasPrefix(f[1], "k ") })
	}
	p.types(t, ctrlC)
	if code := p.code(t); code != 0 {
		t.Errorf("exit code %d", code)
	}

	// Into a pipe the documents stop, and go on.
	piped := zklockOn(t, srv, "show", "--watch", "--json", "--interval", "20ms", "k")
	says(t, piped.out, "\n")
	vanish(srv)
	says(t, piped.err, "the ensemble is away since ")
	srv.Refuse(false)
	says(t, piped.err, "the ensemble is back\n")
	was := len(piped.out.String())
	eventually(t, "there is another document", func() bool { return len(piped.out.String()) > was })
	piped.signal(t, unix.SIGTERM)
	piped.exits(t, 0, "")
}

// When the ensemble goes away in the middle, that is what the exit code says.
func TestTheEnsembleGoesAway(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		during zktest.Op
		args   []string
	}{
		{zktest.OpSync, []string{"ls"}},
		{zktest.OpGetChildren2, []string{"ls"}},
		{zktest.OpGetData, []string{"ls"}},
		{zktest.OpGetData, []string{"ls", "--json"}},
		{zktest.OpGetData, []string{"show", "s:r"}},
		{zktest.OpGetChildren2, []string{"show", "s:r"}},
		{zktest.OpGetChildren2, []string{"rm", "s:r"}},
		{zktest.OpDelete, []string{"rm", "s:r", "--force", "--confirm", "s:r"}},
		{zktest.OpGetData, []string{"resolve", "s:r", "--not-done"}},
		{zktest.OpMulti, []string{"resolve", "s:r", "--not-done", "--wait", "1s"}},
	} {
		t.Run(fmt.Sprintf("%v during %v", tc.args, tc.during), func(t *testing.T) {
			t.Parallel()
			srv := server(t, steady)
			prints(t, srv, 128+9, "once", "--key", "r", "--scope", "s", "--", "sh", "-c", "kill -9 $$")
			gone := srv.Inject(zktest.Before(func() { vanish(srv) }, tc.during))
			p := zklockOn(t, srv, append(tc.args, "--connect-timeout", "2s")...)
			p.exits(t, 69, "zklock doctor says more")
			if gone.Hits() == 0 {
				t.Error("it never asked")
			}
			if p.out.String() != "" {
				t.Errorf("it printed %q", p.out)
			}
		})
	}
}
