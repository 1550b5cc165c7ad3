// Zklock is the lock from the shell: it runs any command under a ZooKeeper lock, and
// stops that command before somebody else can have the lock.
//
//	zklock run --servers zk1,zk2,zk3 --key nightly -- ./nightly.sh
//
// zklock --help lists the commands, zklock COMMAND --help explains one.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/alecthomas/kong"
)

func main() {
	if code, hidden := hiddenMain(os.Args[1:]); hidden {
		os.Exit(code)
	}
	os.Exit(realMain(os.Args[1:], &streams{os.Stdin, os.Stdout, os.Stderr}))
}

// streams are the standard ones, or a test's.
type streams struct {
	in       *os.File
	out, err *os.File
}

// commands is the command line.
type commands struct {
	Config  configFlag  `name:"config" placeholder:"FILE" help:"Read settings from FILE, a JSON object of flag names and values. Default: $$ZKLOCK_CONFIG, or the first of ~/.config/zklock.json and /etc/zklock.json that is there."`
	Version versionFlag `help:"Show the version and exit."`

	Run     runCmd     `cmd:"" help:"Run a command under a lock."`
	Once    onceCmd    `cmd:"" help:"Run a command once for a key, and replay its outcome after that."`
	Ls      lsCmd      `cmd:"" help:"List the keys: who holds them, who waits, what is recorded."`
	Show    showCmd    `cmd:"" help:"Show all about one key."`
	Resolve resolveCmd `cmd:"" help:"Say what a run did that was cut short."`
	Doctor  doctorCmd  `cmd:"" help:"See whether an ensemble is good for locks, and what to do if not."`
	Rm      rmCmd      `cmd:"" help:"Remove a key that nobody uses."`
	Demo    demoCmd    `cmd:"" help:"See what happens when things go wrong, in ten seconds."`
	Serve   serveCmd   `cmd:"" help:"Run a server for trying things out."`

	Completion completionCmd `cmd:"" help:"Print a script with which a shell completes."`
	Man        manCmd        `cmd:"" help:"Print the manual page."`
}

const description = `Locks on a ZooKeeper ensemble, from the shell.

A lock is a key. Of all that want it, on all hosts, one has it at a time; the others
wait in a line. What holds a lock and loses touch with the ensemble is stopped before
anybody else can get it.

    export ZKLOCK_SERVERS=zk1:2181,zk2:2181,zk3:2181
    zklock run --key nightly -- ./nightly.sh     one of five hosts runs it
    zklock run --key deploy --no-wait -- make    or say at once that it is taken
    zklock once --key migration-42 -- ./migrate  at most once, whoever asks again
    zklock ls --watch                            who holds what, who waits

Exit codes: 2 wrong usage, 65 the key was used for something else, 69 no server is ready,
70 what an earlier run did is not known, 75 somebody else has the lock, 76 the lock was
lost, 77 the ensemble refuses access, 126 and 127 the command cannot be run or found,
128+n ended by signal n; otherwise the command's own, or 1.`

// newParser builds the command line's grammar.
func newParser(cli *commands, std *streams, exit func(int)) (*kong.Kong, error) {
	return kong.New(cli,
		kong.Name("zklock"),
		kong.Description(description),
		kong.Writers(std.out, std.err),
		kong.Exit(exit),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 100}),
		kong.ExplicitGroups([]kong.Group{
			{Key: "lock", Title: "The lock:"},
			{Key: "record", Title: "What is kept:"},
			{Key: "outcome", Title: "The outcome:"},
			{Key: "ensemble", Title: "The ensemble (all of these can stand in the environment and in the file of --config):"},
		}),
		kong.Resolvers(&settings{}),
		kong.Bind(std),
	)
}

// exited ends the parser where it would end the process.
type exited int

// realMain runs one command line and returns its exit code.
func realMain(args []string, std *streams) (code int) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case exited:
			code = int(p)
		default:
			panic(p)
		}
	}()
	var cli commands
	parser, err := newParser(&cli, std, func(code int) { panic(exited(code)) })
	if err != nil {
		panic(err) // the grammar is wrong
	}
	ignoreEmptyVariables(parser.Model.Node)
	ctx, err := parser.Parse(args)
	if err != nil {
		complain(std.err, err)
		fmt.Fprintf(std.err, "%s\n", hint(err))
		return exitUsage
	}
	err = ctx.Run()
	if err != nil {
		complain(std.err, err)
	}
	return exitCode(err)
}

// complain says why the program ends, unless the exit code says it all.
func complain(w io.Writer, err error) {
	var e *exitError
	if errors.As(err, &e) && e.err == nil {
		return
	}
	text := err.Error()
	// The file with settings is read while the first flag is looked at, and its errors get
	// that one's name.
	if rest, first := strings.CutPrefix(text, "--help: "); first && !strings.HasPrefix(rest, "bool value") {
		text = rest
	}
	if len(text) < 7 || text[:7] != "zklock:" { // the library's errors begin so
		text = "zklock: " + text
	}
	fmt.Fprintln(w, harmless(text))
}

// harmless is a text without what would control a terminal: errors repeat what others
// have written into the ensemble.
func harmless(text string) string {
	var b strings.Builder
	for _, r := range text {
		if r == '\n' || r == '\t' || strconv.IsPrint(r) {
			b.WriteRune(r)
		} else {
			quoted := strconv.QuoteRune(r)
			b.WriteString(quoted[1 : len(quoted)-1])
		}
	}
	return b.String()
}

// hint says where usage is explained.
func hint(err error) string {
	var parse *kong.ParseError
	if errors.As(err, &parse) && parse.Context != nil {
		if node := parse.Context.Selected(); node != nil {
			return fmt.Sprintf("zklock: see zklock %s --help", node.Name)
		}
	}
	return "zklock: see zklock --help"
}

// versionFlag prints the version that the module system has recorded.
type versionFlag bool

// BeforeReset makes --version work whatever else is on the command line.
func (versionFlag) BeforeReset(app *kong.Kong) error { //nolint:unparam // kong asks for it
	fmt.Fprintln(app.Stdout, "zklock", version())
	app.Exit(0)
	return nil
}

func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "(unknown)"
	}
	return info.Main.Version
}
