//go:build linux

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/go-zklock/zklock/zktest"
)

// Bad input to every flag: a reason that names it on standard error, exit code 2, and
// nothing is started or asked of the ensemble.
func TestBadInput(t *testing.T) {
	srv := server(t, steady)
	t.Setenv("ZKLOCK_SERVERS", srv.Addr())
	s := newScript(t)
	dir := t.TempDir()
	file := func(name, text string) string {
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	run := func(flags ...string) []string {
		return runArgs(append([]string{"--key", "k"}, flags...), s.argv()...)
	}
	once := func(flags ...string) []string {
		return append(append([]string{"once"}, flags...), append([]string{"--"}, s.argv()...)...)
	}
	covered := make(map[string]bool)
	for _, tc := range []struct {
		says string
		args []string
	}{
		{`expected`, nil},
		{`unexpected argument rnu`, []string{"rnu"}},
		{`unknown flag --kye, did you mean "--key"?`, []string{"run", "--kye", "k", "--", "true"}},
		{"no command: put it behind --", []string{"run", "--key", "k"}},
		{"no command: put it behind --", []string{"run", "--key", "k", "--"}},
		{"no command: put it behind --", []string{"run", "--key", "k", "--", ""}},
		{"which lock? Give --key KEY or --path /PATH", runArgs(nil, s.argv()...)},
		{"an empty key names nothing|which lock?", runArgs([]string{"--key", ""}, s.argv()...)},
		{"longer than 1024 bytes", runArgs([]string{"--key", strings.Repeat("k", 1025)}, s.argv()...)},
		{"it has to be absolute", runArgs([]string{"--path", "k"}, s.argv()...)},
		{"it ends with a slash", runArgs([]string{"--path", "/k/"}, s.argv()...)},
		{"--key and --path can't be used together", run("--path", "/k")},
		{"--wait 0s: has to be more than 0", run("--wait", "0s")},
		{"--wait -1s: has to be more than 0", run("--wait=-1s")},
		{"--wait: expected duration", run("--wait", "soon")},
		{"--wait and --no-wait can't be used together", run("--wait", "1s", "--no-wait")},
		{"--no-wait: bool value must be", run("--no-wait=perhaps")},
		{"--on-lost must be one of", run("--on-lost", "ignore")},
		{"--grace -1s: is negative", run("--grace=-1s")},
		{"--grace: expected duration", run("--grace", "x")},
		{"--env: bool value must be", run("--env=perhaps")},
		{"the port \"x\" is not a number from 1 to 65535|port", run("--servers", "h:x")},
		{"it is empty", run("--servers", "a,,b")},
		{"no servers: give --servers", run("--servers", "")},
		{"it has to be absolute", run("--root", "dedup")},
		{"it has to be absolute", []string{"ls", "--root", "dedup"}},
		{`--root "": it is empty; it has to be an absolute path`, run("--root", "")},
		{`--root "": it is empty; it has to be an absolute path`, []string{"ls", "--root", ""}},
		{`--root "": it is empty; it has to be an absolute path`, []string{"ls", "--config", file("root", `{"root": ""}`)}},
		{"--session-timeout 0s: has to be more than 0", run("--session-timeout", "0s")},
		{"SessionTimeout = 1", run("--session-timeout", "1us")},
		{"--session-timeout: expected duration", run("--session-timeout", "long")},
		{"--connect-timeout -1s: has to be more than 0", run("--connect-timeout=-1s")},
		{"TickTime = -1s: it is negative", run("--tick-time=-1s")},
		{"--trust must be one of", run("--trust", "me")},
		{"--auth: has to be SCHEME:CREDENTIALS", run("--auth", "secret")},
		{"--acl must be one of", run("--acl", "x")},
		{"--acl creator: needs --auth", run("--acl", "creator")},
		{"Identifier", run("--identifier", strings.Repeat("x", 1025))},
		{"--tls: bool value must be", run("--tls=perhaps")},
		{"need --tls", run("--tls-ca", "x")},
		{"--tls-ca: open", run("--tls", "--tls-ca", filepath.Join(dir, "none"))},
		{"holds no certificate", run("--tls", "--tls-ca", file("ca", "x"))},
		{"--tls-cert and --tls-key need one another", run("--tls", "--tls-cert", "x")},
		{"--tls-cert and --tls-key need one another", run("--tls", "--tls-key", "x")},
		{"--tls-cert and --tls-key: open", run("--tls", "--tls-cert", "x", "--tls-key", filepath.Join(dir, "none"))},
		{"need --tls", run("--tls-server-name", "x")},
		{"--verbose: bool value must be", run("--verbose=perhaps")},
		{"no such file", run("--config", filepath.Join(dir, "none"))},
		{"not a JSON object", run("--config", file("json", "{"))},
		{`"kye" is no setting`, run("--config", file("unknown", `{"kye": "k"}`))},
		{`"auth" has to be a list of strings and numbers`, run("--config", file("deep", `{"auth": [["a"]]}`))},
		{"--success: ", once("--key", "k", "--config", file("success", `{"success": ["x"]}`))},
		{`"wait" has to be a string, a number`, run("--config", file("object", `{"wait": {}}`))},
		{"--grace: expected duration", run("--config", file("grace", `{"grace": "x"}`))},
		{"--version: bool value must be", []string{"--version=perhaps"}},
		{"--help: bool value must be", []string{"--help=perhaps"}},
		{"has to be HOST:PORT", []string{"serve", "--listen", "2181"}},
		{"the port has to be a number from 0 to 65535", []string{"serve", "--listen", "127.0.0.1:x"}},
		{"--tick 0s: has to be at least 1ms", []string{"serve", "--tick", "0s"}},
		{"Give --key", []string{"once"}},
		{"Give --key", once("--key=")},
		{"longer than 1024 bytes", once("--key", strings.Repeat("k", 1025))},
		{"cannot be printed", once("--key", "a\nb")},
		{"longer than 256 bytes", once("--key", "k", "--scope", strings.Repeat("s", 257))},
		{"--retention 1ms: has to be at least 1s", once("--key", "k", "--retention", "1ms")},
		{"--wait 2s: is longer than --retention 1s", once("--key", "k", "--retention", "1s", "--wait", "2s")},
		{"--on-unknown must be one of", once("--key", "k", "--on-unknown", "guess")},
		{"--success: expected a valid 64 bit int", once("--key", "k", "--success", "x")},
		{"--success [256]: has to be exit codes from 0 to 255", once("--key", "k", "--success", "256")},
		{"--max-output -1: has to be from 0 to", once("--key", "k", "--max-output=-1")},
		{"--replay: bool value must be", once("--key", "k", "--replay=perhaps")},
		{"unknown flag --payloads", once("--key", "k", "--payloads", "x")},
		{"--payload: expected string value", []string{"once", "--key", "k", "--payload"}},
		{"no command: put it behind --, as in zklock once", []string{"once", "--key", "k"}},
		{"an empty key names nothing", []string{"show"}},
		{"an empty key names nothing", []string{"show", ""}},
		{"unexpected argument b", []string{"show", "a", "b"}},
		{"--json: bool value must be", []string{"show", "a", "--json=perhaps"}},
		{"--watch: bool value must be", []string{"ls", "--watch=perhaps"}},
		{"--interval 1ms: has to be at least 10ms", []string{"ls", "--interval", "1ms"}},
		{"--interval 0s: has to be at least 10ms", []string{"show", "a", "--interval", "0s"}},
		{"unexpected argument b", []string{"ls", "a", "b"}},
		{"an empty key names nothing", []string{"rm"}},
		{"an empty key names nothing", []string{"rm", ""}},
		{"--force: bool value must be", []string{"rm", "k", "--force=perhaps"}},
		{"--confirm \"l\": has to repeat the key", []string{"rm", "k", "--force", "--confirm", "l"}},
		{"--confirm needs --force", []string{"rm", "k", "--confirm", "k"}},
		{"what came of it?", []string{"resolve", "k"}},
		{"can't be used together", []string{"resolve", "k", "--done", "--not-done"}},
		{"can't be used together", []string{"resolve", "k", "--done", "--failed", "x"}},
		{"go with --done", []string{"resolve", "k", "--not-done", "--status", "1"}},
		{"go with --done", []string{"resolve", "k", "--not-done", "--output", "x"}},
		{"a stored text has no --status", []string{"resolve", "k", "--done", "--raw", "--status", "1"}},
		{"--status 256: has to be an exit code", []string{"resolve", "k", "--done", "--status", "256"}},
		{"--wait 0s: has to be more than 0", []string{"resolve", "k", "--done", "--wait", "0s"}},
		{"--proofs 0: has to be from 1 to 1000", []string{"doctor", "--proofs", "0"}},
		{"need --tls", []string{"doctor", "--tls-ca", "x"}},
		{"no servers: give --servers", []string{"doctor", "--servers", ""}},
		{"SessionTimeout = 1", []string{"doctor", "--session-timeout", "1us"}},
		{"it has to be absolute", []string{"doctor", "--root", "dedup"}},
		{"TickTime = -1s: it is negative", []string{"doctor", "--tick-time=-1s"}},
		{"must be one of", []string{"completion", "csh"}},
		{"expected \"<shell>\"", []string{"completion"}},
		{"unexpected argument x", []string{"man", "x"}},
		{"unexpected argument x", []string{"demo", "x"}},
	} {
		for _, a := range tc.args {
			if strings.HasPrefix(a, "--") {
				name, _, _ := strings.Cut(a[2:], "=")
				covered[name] = true
			}
		}
		code, out, said := inProcess(t, tc.args)
		ok := false
		for want := range strings.SplitSeq(tc.says, "|") {
			ok = ok || strings.Contains(said, want)
		}
		if code != 2 || !ok || out != "" {
			t.Errorf("%.200q: exit code %d, want 2; says %q, want %q; output %q", tc.args, code, said, tc.says, out)
		}
	}
	var cli commands
	parser, err := newParser(&cli, &streams{os.Stdin, os.Stdout, os.Stderr}, func(int) {})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range append(settable(parser.Model.Node), "config", "version", "help") {
		if !covered[name] {
			t.Errorf("no bad input to --%s", name)
		}
	}
	if s.started() {
		t.Error("a command was started")
	}
	if n := srv.Ops().Count(zktest.OpConnect); n > 0 {
		t.Errorf("%d sessions were opened", n)
	}
}

// inProcess runs a command line in this process, which is quick.
func inProcess(t *testing.T, args []string) (code int, out, said string) {
	t.Helper()
	var files []*os.File
	for _, name := range []string{"out", "err"} {
		f, err := os.Create(filepath.Join(t.TempDir(), name))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	code = realMain(args, &streams{os.Stdin, files[0], files[1]})
	var texts []string
	for _, f := range files {
		text, err := os.ReadFile(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, string(text))
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return code, texts[0], texts[1]
}

// A flag goes before the environment, that before the file, and that before the default.
func TestWhereSettingsComeFrom(t *testing.T) {
	t.Parallel()
	srv := server(t, steady)
	home := t.TempDir()
	other := filepath.Join(home, "other.json")
	for name, text := range map[string]string{
		other:                              `{"root": "/other", "servers": "` + srv.Addr() + `", "no-wait": true, "auth": ["digest:a:b", "digest:c:d,e"]}`,
		filepath.Join(home, "zklock.json"): `{"root": "/file", "servers": "` + srv.Addr() + `", "grace": "1s"}`,
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		want  string
		env   []string
		flags []string
	}{
		{"/file/k/", nil, nil},
		{"/env/k/", []string{"ZKLOCK_ROOT=/env"}, nil},
		{"/flag/k/", []string{"ZKLOCK_ROOT=/env"}, []string{"--root", "/flag"}},
		{"/other/k/", nil, []string{"--config", other}},
		{"/other/k/", []string{"ZKLOCK_CONFIG=" + other}, nil},
		{"/file/k/", []string{"ZKLOCK_CONFIG="}, nil},
	} {
		cmd := command(runArgs(append(tc.flags, "--key", "k"), "sh", "-c", `echo "$ZKLOCK_PATH"`)...)
		cmd.Env = append(append(cmd.Env, "XDG_CONFIG_HOME="+home), tc.env...)
		p := start(t, cmd)
		if code := p.code(t); code != 0 || !strings.HasPrefix(p.out.String(), tc.want) {
			t.Errorf("%v %v: %d, %q, want %q", tc.env, tc.flags, code, p.out, tc.want)
		}
	}
	p := start(t, command(runArgs([]string{"--root", "/r", "--key", "k", "--servers", srv.Addr()}, "sh", "-c", `echo "$ZKLOCK_PATH"`)...))
	if p.code(t); !strings.HasPrefix(p.out.String(), "/r/k/") {
		t.Errorf("without any file: %q", p.out)
	}
}

func TestHelp(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"--help":       "Exit codes: 2 wrong usage, 65 the key was used",
		"run --help":   "What escapes: a process that leaves the group",
		"serve --help": "for trying things out",
		"--version":    "zklock ",
	} {
		p := start(t, command(strings.Fields(args)...))
		p.exits(t, 0, "")
		if !strings.Contains(p.out.String(), want) {
			t.Errorf("%s does not say %q:\n%s", args, want, p.out)
		}
	}
}

// A wait begins once there is a session, which no flag of the wait bounds.
func TestHelpSaysWhatBoundsTheConnect(t *testing.T) {
	t.Parallel()
	var cli commands
	parser, err := newParser(&cli, &streams{os.Stdin, os.Stdout, os.Stderr}, func(int) {})
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, node := range visible(parser.Model.Node) {
		for _, f := range node.Flags {
			if f.Name == "wait" || f.Name == "no-wait" {
				n++
				if !strings.Contains(f.Help, "Connecting comes before, and is bounded by --connect-timeout.") {
					t.Errorf("zklock %s: --%s: %s", node.Name, f.Name, f.Help)
				}
			}
		}
	}
	if n != 5 {
		t.Errorf("%d flags, want --wait and --no-wait of run and once, and --wait of resolve", n)
	}
}

// zklock --help lists every exit code that is not the command's own.
func TestHelpListsTheExitCodes(t *testing.T) {
	t.Parallel()
	_, codes, ok := strings.Cut(strings.ReplaceAll(description, "\n", " "), "Exit codes: ")
	if !ok {
		t.Fatal("it lists none")
	}
	for _, code := range []int{
		exitFailed, exitUsage, exitData, exitUnavailable, exitUnknown, exitNotAcquired, exitLost, exitNoPermission, exitCannotRun, exitNotFound, exitSignal,
	} {
		if !regexp.MustCompile(`\b` + strconv.Itoa(code) + `\b`).MatchString(codes) {
			t.Errorf("%d is missing", code)
		}
	}
}
