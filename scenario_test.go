package zklock

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zklock/zklock/zktest"
)

// Each file in testdata/scenarios is one run of the protocol, to be read from top to
// bottom: what is done, and under it what is seen. It runs in virtual time with a
// latency of 1 ms each way, so that the times are exact.
//
// A line that starts with "> " is a command; the indented lines under it are what
// happens from there to the next command; everything else is for the reader. A line of
// the trace has the time in milliseconds since the start, who sees it, and what:
//
//	14  B  sends   getData+watch a1-0000000000    a request leaves the client
//	16  B  gets    ok                             its answer arrives
//	20  B  watch   deleted a1-0000000000          a watch fires
//	24  B  call    y: acquired, token 0x7         a call returns
//	24  B  lease   y: Held                        a lease changes its state
//	30  B  state   Suspended                      the client changes its state
//	40  S  expires the session of A               the ensemble ends a session
//	40  S  deletes b2-0000000001                  a lock node goes with it, or by hand
//
// Lock nodes are shown without their path, and with the client's letter and a number in
// the place of the uuid: a1-0000000000 is /dedup/k/_c_<uuid>-lock-0000000000, the
// first node of client A. Pings, and the syncs that a client sends while it holds
// nothing, are left out; proofs, the transactions that check the nodes held, are shown
// after "show proofs".
//
// Commands:
//
//	ensemble N            start N servers, 1 to N; tick 2 s; the last one leads
//	client A T [N]        open client A with session timeout T, on server N if given
//	A acquire KEY as x [T]  call Acquire on /dedup/KEY; T bounds the wait
//	A try KEY as x        call TryAcquire
//	A enter x as y        call Acquire again under the context of lease x
//	A gate x              pass the gate: call Await
//	A release x           call Release
//	A close               call Close
//	A dies                the process is killed: its connections end, nothing follows
//	A cut                 the connections of A end, and it can make no others until "A back"
//	A back                ends that
//	expire A              the ensemble ends the session of A now
//	delete A              an operator deletes the first lock node of A's
//	drop request|reply OP A   lose the next request of that kind, or its answer, and the connection
//	cut off N, heal N     separate server N from the others, and join it again
//	show proofs           see above
//	wait D                let time pass
//
// Every command but wait is given 50 ms. go test -run TestScenarios -update . writes
// what happens into the files.
var flagUpdate = flag.Bool("update", false, "write the traces of the scenarios into their files")

func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/scenarios/*.txt")
	if err != nil || len(files) < 9 {
		t.Fatalf("%d scenarios, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			want := string(text)
			got := runScenario(t, want)
			switch {
			case got == want:
			case *flagUpdate:
				if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
					t.Fatal(err)
				}
			default:
				t.Errorf("%s: what happens has changed; -update accepts it\n%s", file, firstDifference(want, got))
			}
		})
	}
}

// firstDifference shows where two texts part.
func firstDifference(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	i := 0
	for i < min(len(w), len(g)) && w[i] == g[i] {
		i++
	}
	cut := func(lines []string) string { return strings.Join(lines[min(i, len(lines)):min(i+6, len(lines))], "\n") }
	return fmt.Sprintf("line %d, want:\n%s\ngot:\n%s", i+1, cut(w), cut(g))
}

// runScenario runs the commands of a file and returns it with what has happened.
func runScenario(t *testing.T, text string) string {
	t.Helper()
	var out strings.Builder
	synctest.Test(t, func(t *testing.T) {
		sc := &scenario{t: t, start: time.Now(), clients: map[string]*scenarioClient{}, names: map[string]string{}, sessions: map[int64]string{}}
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, "    ") {
				continue // the last run's trace
			}
			out.WriteString(line)
			command, ok := strings.CutPrefix(strings.TrimSpace(line), "> ")
			if !ok {
				continue
			}
			if err := sc.do(strings.Fields(command)); err != nil {
				t.Fatalf("%q: %v", command, err)
			}
			for _, seen := range sc.trace() {
				out.WriteString("    " + seen + "\n")
			}
		}
		sc.end()
	})
	return out.String()
}

// settle is how long a command is given.
const settle = 50 * time.Millisecond

var errUsage = errors.New("no such command, or not with these words")

// do carries out one command.
func (sc *scenario) do(words []string) error {
	pause := settle
	var err error
	switch {
	case len(words) == 2 && words[0] == "ensemble":
		return sc.startEnsemble(words[1])
	case len(words) == 2 && words[0] == "wait":
		pause, err = time.ParseDuration(words[1])
	case len(words) >= 3 && words[0] == "client":
		err = sc.open(words[1], words[2], words[3:])
	case len(words) == 2 && words[0] == "show" && words[1] == "proofs":
		sc.proofs = true
		return nil
	case len(words) == 2 && words[0] == "expire":
		err = sc.with(words[1], func(c *scenarioClient) error {
			if !sc.ens.Leader().Expire(c.client.SessionID()) {
				return fmt.Errorf("%s has no session", c.name)
			}
			return nil
		})
	case len(words) == 2 && words[0] == "delete":
		err = sc.with(words[1], func(c *scenarioClient) error {
			nodes := sc.ens.Leader().EphemeralsOf(c.client.SessionID())
			if len(nodes) == 0 {
				return fmt.Errorf("%s has no lock node", c.name)
			}
			return sc.ens.Leader().Delete(nodes[0])
		})
	case len(words) == 4 && words[0] == "drop":
		err = sc.drop(words[1], words[2], words[3])
	case len(words) == 3 && words[0] == "cut" && words[1] == "off":
		err = sc.server(words[2], (*zktest.Server).CutFromPeers)
	case len(words) == 2 && words[0] == "heal":
		err = sc.server(words[1], (*zktest.Server).HealPeers)
	case len(words) >= 2:
		err = sc.with(words[0], func(c *scenarioClient) error { return c.do(words[1], words[2:]) })
	default:
		err = errUsage
	}
	time.Sleep(pause)
	synctest.Wait()
	return err
}

// do carries out a command to a client.
func (c *scenarioClient) do(verb string, words []string) error {
	switch {
	case verb == "acquire" && len(words) >= 3 && words[1] == "as":
		return c.acquire(words[0], words[2], words[3:])
	case verb == "try" && len(words) == 3 && words[1] == "as":
		return c.try(words[0], words[2])
	case verb == "enter" && len(words) == 3 && words[1] == "as":
		return c.enter(words[0], words[2])
	case verb == "gate" && len(words) == 1:
		return c.gate(words[0])
	case verb == "release" && len(words) == 1:
		return c.release(words[0])
	case verb == "close" && len(words) == 0:
		c.close()
	case verb == "dies" && len(words) == 0:
		c.gone.Store(true)
		c.cut()
	case verb == "cut" && len(words) == 0:
		c.cut()
	case verb == "back" && len(words) == 0:
		c.away.Store(false)
	default:
		return errUsage
	}
	return nil
}

// drop loses the next request of a kind, or its answer.
func (sc *scenario) drop(what, kind, client string) error {
	ops := map[string]zktest.Op{
		"create": zktest.OpCreate, "delete": zktest.OpDelete, "getChildren": zktest.OpGetChildren2,
		"getData": zktest.OpGetData, "sync": zktest.OpSync, "check": zktest.OpMulti,
	}
	op, ok := ops[kind]
	if !ok {
		return errUsage
	}
	switch what {
	case "request":
		sc.ens.Inject(zktest.DropRequest(op).Client(client))
	case "reply":
		sc.ens.Inject(zktest.DropReply(op).Client(client))
	default:
		return errUsage
	}
	return nil
}
