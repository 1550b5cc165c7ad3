package deploy

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/zktest"
)

// The command lines of the unit and of the CronJob run their job, and end with the exit codes that both rely on.
func TestCommandLines(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "zklock")
	if out, err := exec.Command("go", "build", "-C", "..", "-o", bin, "./cmd/zklock").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	unit := read(t, "zklock-nightly.service")
	start := regexp.MustCompile(`(?m)^ExecStart=(.*)$`).FindStringSubmatch(unit)
	if start == nil {
		t.Fatal("the unit starts nothing")
	}
	container := cronJob(t).Spec.JobTemplate.Spec.Template.Spec.Containers[0]
	for name, line := range map[string][]string{"unit": strings.Fields(start[1]), "CronJob": container.Command} {
		t.Run(name, func(t *testing.T) {
			const taken = "false" // the job that must not run
			srv := zktest.NewServer(t, zktest.WithListen("127.0.0.1:0"))
			run := func(servers string, job ...string) int {
				dash := slices.Index(line, "--")
				if line[0] != "/usr/local/bin/zklock" || dash < 0 || line[dash+1] != "/usr/local/bin/nightly" {
					t.Fatalf("the command line is %q", line)
				}
				args := slices.Concat(line[1:dash+1], job)
				if i := slices.Index(args, "--wait"); i >= 0 && job[0] == taken {
					args[i+1] = "1s" // nobody gives the lock up
				}
				cmd := exec.Command(bin, args...)
				cmd.Env = append(os.Environ(), "ZKLOCK_SERVERS="+servers, "ZKLOCK_CONFIG=")
				if servers != srv.Addr() {
					cmd.Env = append(cmd.Env, "ZKLOCK_CONNECT_TIMEOUT=1s") // nobody is there
				}
				out, err := cmd.CombinedOutput()
				var exit *exec.ExitError
				switch {
				case err == nil:
					return 0
				case errors.As(err, &exit):
					t.Logf("%q: %s", args, out)
					return exit.ExitCode()
				default:
					t.Fatal(err)
					return -1
				}
			}
			want := func(what string, got, want int) {
				if got != want {
					t.Errorf("%s: exit code %d, want %d", what, got, want)
				}
			}
			want("a job that is done", run(srv.Addr(), "sh", "-c", `test -r "$ZKLOCK_DEADLINE_FILE"`), 0)
			want("a job that fails", run(srv.Addr(), "sh", "-c", "exit 9"), 9)
			want("no job", run(srv.Addr(), "/no/such/job"), 127)
			client, err := zklock.Connect(t.Context(), zklock.Config{Servers: []string{srv.Addr()}})
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			mutex, err := zklock.NewInterProcessMutex(client, "/dedup/nightly")
			if err != nil {
				t.Fatal(err)
			}
			err = mutex.Do(t.Context(), func(context.Context, *zklock.Lease) error {
				want("taken", run(srv.Addr(), taken), 75)
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			want("no server", run(freeAddress(t), "true"), 69)
		})
	}
	help, err := exec.Command(bin, "run", "--help").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range container.Env {
		if !strings.Contains(string(help), "$"+v.Name) {
			t.Errorf("zklock run knows of no %s", v.Name)
		}
	}
}
