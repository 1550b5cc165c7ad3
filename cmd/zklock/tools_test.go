//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/go-zklock/zklock/zktest"
)

// prints runs zklock and checks its exit code; it returns what it printed.
func prints(t *testing.T, srv *zktest.Server, code int, args ...string) string {
	t.Helper()
	p := zklockOn(t, srv, args...)
	if got := p.code(t); got != code {
		t.Errorf("%v: exit code %d, want %d", args, got, code)
	}
	return p.out.String()
}

// queue starts a holder and a waiter of a key.
func queue(t *testing.T, srv *zktest.Server, key string) (holder, waiter *process, s *script) {
	t.Helper()
	s = newScript(t)
	holder = zklockOn(t, srv, runArgs([]string{"--key", key, "--identifier", "first"}, s.argv()...)...)
	s.running(t)
	waiter = zklockOn(t, srv, runArgs([]string{"--key", key, "--identifier", "second\x1b[2J"}, "true")...)
	eventually(t, "it waits", func() bool { return len(nodes(srv, key)) == 2 })
	return holder, waiter, s
}

func TestLsAndShow(t *testing.T) {
	t.Parallel()
	srv := server(t, steady)
	if got := prints(t, srv, 0, "ls", "--json"); got != "[]\n" {
		t.Errorf("nothing there: %q", got)
	}
	holder, waiter, s := queue(t, srv, "job/1")
	prints(t, srv, 0, "once", "--key", "7", "--scope", "charge", "--", "echo", "hello")
	prints(t, srv, 3, "once", "--key", "fails", "--", "sh", "-c", "exit 3")
	if err := srv.Create("/dedup/corrupt", []byte("zklock-dedup/1 {")); err != nil {
		t.Fatal(err)
	}
	if err := srv.Create("/dedup/newer", []byte("zklock-dedup/9 {}\n")); err != nil {
		t.Fatal(err)
	}

	text := prints(t, srv, 0, "ls")
	for _, want := range []string{
		`(?m)^KEY +HOLDER +FOR +WAITING +TOKEN +RECORD$`,
		`(?m)^charge:7 +- +- +0 +- +done, attempt 1, \d+s$`,
		`(?m)^corrupt +- +- +0 +- +unreadable$`,
		`(?m)^fails +- +- +0 +- +open, attempt 1, \d+s$`,
		`(?m)^job/1 +first +\d+s +1 +\d+ +-$`,
		`(?m)^newer +.* +unreadable$`,
	} {
		if !regexp.MustCompile(want).MatchString(text) {
			t.Errorf("ls does not print %s:\n%s", want, text)
		}
	}
	if text := prints(t, srv, 0, "ls", "job"); strings.Count(text, "\n") != 2 {
		t.Errorf("ls job:\n%s", text)
	}
	var views []keyView
	if err := json.Unmarshal([]byte(prints(t, srv, 0, "ls", "--json", "job/")), &views); err != nil || len(views) != 1 {
		t.Fatalf("%v %v", views, err)
	}
	v := views[0]
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	if v.Key != "job/1" || v.Path != "/dedup/job%2F1" || v.Holder == nil || v.Holder.Identifier != "first" || v.Holder.Host != host ||
		v.Holder.PID != holder.cmd.Process.Pid || v.Holder.Token <= 0 || time.Since(v.Holder.Since) > time.Minute ||
		len(v.Waiting) != 1 || v.Waiting[0].PID != waiter.cmd.Process.Pid || v.Record != nil {
		t.Errorf("%+v, holder %+v", v, v.Holder)
	}

	text = prints(t, srv, 0, "show", "job/1")
	for _, want := range []string{
		`(?m)^holder +first \(host ` + host + fmt.Sprintf(`, pid %d\), session 0x[0-9a-f]+, since `, holder.cmd.Process.Pid),
		`(?m)^token +\d+ \(0x[0-9a-f]+\)$`,
		`(?m)^1st +"second\\x1b\[2J" \(host`, // nobody's terminal is at the mercy of an identifier
	} {
		if !regexp.MustCompile(want).MatchString(text) {
			t.Errorf("show does not print %s:\n%s", want, text)
		}
	}
	text = prints(t, srv, 0, "show", "charge:7")
	if !strings.Contains(text, `exit code 0, stdout "hello\n"`) || !strings.Contains(text, "kept for 24h0m0s after that") {
		t.Errorf("show of a record:\n%s", text)
	}
	var one keyView
	if err := json.Unmarshal([]byte(prints(t, srv, 0, "show", "--json", "charge:7")), &one); err != nil || one.Record == nil || one.Record.State != "done" {
		t.Errorf("%+v, %v", one, err)
	}
	prints(t, srv, 1, "show", "none")
	prints(t, srv, 0, "show", "corrupt")
	s.end(t)
	holder.exits(t, 5, "")
	waiter.exits(t, 0, "")
}

func TestLsBelowAChroot(t *testing.T) {
	t.Parallel()
	srv := server(t, steady)
	s := newScript(t)
	chroot := []string{"--servers", srv.Addr() + "/a/b"}
	p := zklockOn(t, srv, runArgs(append(chroot, "--key", "k"), s.argv()...)...)
	s.running(t)
	if !srv.Exists("/a/b/dedup/k") {
		t.Error("the lock is not below the chroot")
	}
	if text := prints(t, srv, 0, append([]string{"ls"}, chroot...)...); !strings.Contains(text, "\nk ") {
		t.Errorf("%s", text)
	}
	if text := prints(t, srv, 0, append([]string{"doctor"}, chroot...)...); strings.Contains(text, "fail") || !strings.Contains(text, "has 1 keys") {
		t.Errorf("%s", text)
	}
	s.end(t)
	p.exits(t, 5, "")
}

// A person sees the table in place, and its changes.
func TestTerminalShowsLsWatch(t *testing.T) {
	t.Parallel()
	srv := server(t, steady)
	p := atTerminal(t, srv, command("ls", "--watch", "--interval", "50ms"))
	says(t, p.screen, "\x1b[2J\x1b[?7l\x1b[HKEY")
	holder, waiter, s := queue(t, srv, "job")
	eventually(t, "it shows the queue", func() bool {
		return regexp.MustCompile(`\x1b\[Hjob|\njob +first +\d+s +1 +\d+ +-\x1b\[K`).MatchString(p.screen.String())
	})
	s.end(t)
	holder.exits(t, 5, "")
	waiter.exits(t, 0, "")
	eventually(t, "it shows that nobody holds it", func() bool {
		frames := strings.Split(p.screen.String(), "\x1b[H")
		return len(frames) > 1 && regexp.MustCompile(`job +- +- +0`).MatchString(frames[len(frames)-2])
	})
	p.types(t, ctrlC)
	if code := p.code(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// What another has written reaches nobody's terminal as it is.
func TestTextsOfOthersAreHarmless(t *testing.T) {
	t.Parallel()
	srv := server(t, steady)
	const evil = "a\x1b]0;title\x07\nb\u009bm"
	s := newScript(t)
	holder := zklockOn(t, srv, runArgs([]string{"--key", "k", "--identifier", evil}, s.argv()...)...)
	s.running(t)
	waiter := atTerminal(t, srv, command(runArgs([]string{"--key", "k"}, "true")...))
	says(t, waiter.screen, `held by "a\x1b]0;title\a\nb\u009bm" since `)
	s.end(t)
	holder.exits(t, 5, "")
	if code := waiter.code(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if strings.Contains(waiter.screen.String(), "title\x07") {
		t.Errorf("%q", waiter.screen)
	}

	// An error names the owner of the record.
	prints(t, srv, 128+9, "once", "--key", "r", "--identifier", "\x1b[2J", "--", "sh", "-c", "kill -9 $$")
	refused := zklockOn(t, srv, "once", "--key", "r", "--", "true")
	refused.exits(t, 70, `\x1b[2J`)
	if strings.Contains(refused.err.String(), "\x1b") {
		t.Errorf("%q", refused.err)
	}
	if got, want := harmless("é\t\"'\\\n\x1b\x9b"), "é\t\"'\\\n\\x1b\ufffd"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestWatchIntoAPipe(t *testing.T) {
	t.Parallel()
	srv := server(t, steady)
	p := zklockOn(t, srv, "show", "--watch", "--json", "--interval", "20ms", "k")
	eventually(t, "three documents", func() bool { return strings.Count(p.out.String(), "\n") >= 3 })
	p.signal(t, syscall.SIGTERM)
	p.exits(t, 0, "")
	first, _, _ := strings.Cut(p.out.String(), "\n")
	if first != `{"key":"k","path":"/dedup/k"}` {
		t.Errorf("%q", first)
	}
}

func TestRm(t *testing.T) {
	t.Parallel()
	srv := server(t, 200*time.Millisecond)
	prints(t, srv, 1, "rm", "k")
	holder, waiter, s := queue(t, srv, "k")
	p := zklockOn(t, srv, "rm", "k")
	p.exits(t, 75, "k is held by first, and 1 wait for it; nothing was removed")
	p = zklockOn(t, srv, "rm", "k", "--force")
	p.exits(t, 2, "--force needs --confirm k")

	// On a terminal it asks.
	person := atTerminal(t, srv, command("rm", "k", "--force"))
	says(t, person.screen, "Type the key to remove it: ")
	person.types(t, "l\n")
	if code := person.code(t); code != 1 {
		t.Errorf("exit code %d", code)
	}
	if got := nodes(srv, "k"); len(got) != 2 {
		t.Errorf("nodes %v", got)
	}
	person = atTerminal(t, srv, command("rm", "k", "--force"))
	says(t, person.screen, "Type the key to remove it: ")
	person.types(t, "k\n")
	// The waiter queues anew at once, and may be there before the key's node is deleted.
	if code := person.code(t); code != 0 && code != 75 {
		t.Errorf("exit code %d", code)
	}
	holder.exits(t, 76, "node_deleted")
	s.gone(t)
	waiter.exits(t, 0, "")

	// A record goes, one of an unknown outcome only by force.
	prints(t, srv, 0, "once", "--key", "r", "--", "true")
	prints(t, srv, 0, "rm", "r")
	prints(t, srv, 128+9, "once", "--key", "r", "--", "sh", "-c", "kill -9 $$")
	zklockOn(t, srv, "rm", "r").exits(t, 75, "unknown outcome")
	prints(t, srv, 0, "rm", "r", "--force", "--confirm", "r")
	if srv.Exists("/dedup/r") {
		t.Error("the record is left")
	}
}

func TestLeftover(t *testing.T) {
	t.Parallel()
	now := time.Now()
	old, fresh := now.Add(-2*time.Hour).UnixMilli(), now.Add(-time.Minute).UnixMilli()
	for _, tc := range []struct {
		stat zk.Stat
		want bool
	}{
		{zk.Stat{Ctime: old}, true},
		{zk.Stat{Ctime: fresh}, false}, // a container that was used a moment ago
		{zk.Stat{Ctime: old, NumChildren: 1}, false},
		{zk.Stat{Ctime: old, DataLength: 1}, false}, // a record
	} {
		if got := leftover(&tc.stat, now); got != tc.want {
			t.Errorf("%+v: %v", tc.stat, got)
		}
	}
}

func TestDoctor(t *testing.T) {
	t.Parallel()
	srv := server(t, 200*time.Millisecond, func(c *zktest.Config) { c.FourLetterWords = []string{"srvr", "conf"} })
	if err := srv.Create("/dedup", nil); err != nil {
		t.Fatal(err)
	}
	if err := srv.Create("/dedup/old", nil); err != nil {
		t.Fatal(err)
	}
	text := prints(t, srv, 0, "doctor", "--session-timeout", "4s")
	for _, want := range []string{
		"ok    server " + srv.Addr() + ": standalone, ZooKeeper 3.9.3", "warn  quorum: a single server",
		"ok    four-letter words: 1 of 1", "ok    session timeout: 4s, as asked", "ok    tick: 200ms; 2s is assumed",
		"ok    access: everybody", "ok    root: /dedup has 1 keys", "ok    containers: known", "ok    clock: ",
		"ok    writes: 9 proofs took", "ok    leftovers: none among 1 keys",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("it does not say %q:\n%s", want, text)
		}
	}
	if got := srv.Children("/dedup"); len(got) != 1 {
		t.Errorf("it leaves %v", got)
	}
	text = prints(t, srv, 1, "doctor", "--tick-time", "100ms", "--session-timeout", "12s")
	for _, want := range []string{
		"fail  tick: the servers' tickTime is 200ms, and 100ms is assumed", "give --tick-time 200ms",
		"warn  session timeout: 4s was granted, 12s asked for",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("it does not say %q:\n%s", want, text)
		}
	}
	var found []finding
	if err := json.Unmarshal([]byte(prints(t, srv, 0, "doctor", "--json")), &found); err != nil || len(found) < 10 {
		t.Errorf("%v %v", found, err)
	}
	// Slow writes.
	slow := srv.Inject(zktest.DelayReply(600*time.Millisecond, zktest.OpMulti).Always())
	if text := prints(t, srv, 1, "doctor", "--session-timeout", "3s", "--proofs", "1"); !strings.Contains(text, "fail  writes: ") {
		t.Errorf("%s", text)
	}
	slow.Heal()

	quiet := server(t, 200*time.Millisecond, func(c *zktest.Config) { c.FourLetterWords = []string{"ruok"} })
	text = prints(t, quiet, 0, "doctor")
	if !strings.Contains(text, "no server answers conf") {
		t.Errorf("%s", text)
	}
	quiet.Refuse(true)
	text = prints(t, quiet, 69, "doctor", "--connect-timeout", "300ms")
	if !strings.Contains(text, "fail  session: ") || !strings.Contains(text, "-> see whether a server listens") {
		t.Errorf("%s", text)
	}
}

func TestServe(t *testing.T) {
	t.Parallel()
	p := start(t, command("serve", "--listen", "127.0.0.1:0", "--tick", "200ms"))
	says(t, p.out, "\n")
	addr := strings.TrimSpace(p.out.String())
	start(t, command(runArgs([]string{"--servers", addr, "--key", "k"}, "true")...)).exits(t, 0, "")
	start(t, command("serve", "--listen", addr)).exits(t, 69, "address already in use")
	p.signal(t, syscall.SIGTERM)
	p.exits(t, 0, "")
}

func TestDemo(t *testing.T) {
	t.Parallel()
	p := start(t, command("demo"))
	p.exits(t, 0, "")
	for _, want := range []string{
		"worker-1 has the lock", "zklock has stopped worker-1", "it goes on (SIGCONT)", "exits with 76", "kill -9",
		"never two workers at the same time", "Invoice 7 was charged once; all three callers were told \"paid, receipt ",
	} {
		if !strings.Contains(p.out.String(), want) {
			t.Errorf("it does not say %q:\n%s", want, p.out)
		}
	}
	if t.Failed() {
		t.Log(p.out)
	}
}

// The demonstration is the same for somebody with settings for an ensemble.
func TestDemoWithoutTheSettingsOfTheUser(t *testing.T) {
	t.Parallel()
	cmd := command("demo")
	cmd.Env = append(cmd.Env, "ZKLOCK_ROOT=/locks", "ZKLOCK_TLS_CA=none", "ZKLOCK_TOKEN=1", "XDG_CONFIG_HOME="+
		filepath.Dir(settingsFile(t, `{"root": "/locks", "tls": true, "auth": ["digest:a:b"], "no-wait": true, "retention": "1s"}`)))
	start(t, cmd).exits(t, 0, "")
}

// The page has every command and flag, and no line that roff would take for a request.
func TestMan(t *testing.T) {
	t.Parallel()
	p := start(t, command("man"))
	p.exits(t, 0, "")
	page := strings.ReplaceAll(p.out.String(), `\-`, "-")
	var cli commands
	parser, err := newParser(&cli, &streams{os.Stdin, os.Stdout, os.Stderr}, func(int) {})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range settable(parser.Model.Node) {
		if !strings.Contains(page, "--"+name) {
			t.Errorf("no --%s", name)
		}
	}
	for _, node := range visible(parser.Model.Node) {
		if !strings.Contains(page, ".SS zklock "+node.Name) {
			t.Errorf("no zklock %s", node.Name)
		}
	}
	for line := range strings.Lines(p.out.String()) {
		if strings.HasPrefix(line, ".") && !regexp.MustCompile(`^\.(TH|SH|SS|B|I|P|TP|br|nf|fi)\b`).MatchString(line) || line[0] == '\'' {
			t.Errorf("a line of text is a request: %q", line)
		}
	}
	if groff, err := exec.LookPath("groff"); err == nil {
		cmd := exec.Command(groff, "-man", "-ww", "-z", "-Tutf8")
		cmd.Stdin = strings.NewReader(p.out.String())
		if text, err := cmd.CombinedOutput(); err != nil || len(text) > 0 {
			t.Errorf("groff: %v %s", err, text)
		}
	}
}
