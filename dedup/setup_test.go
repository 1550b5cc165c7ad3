package dedup_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/dedup"
	"github.com/go-zklock/zklock/dedup/driver"
	"github.com/go-zklock/zklock/internal/testlog"
	"github.com/go-zklock/zklock/zktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bundle is what a test in virtual time works with.
type bundle struct {
	t   *testing.T
	srv *zktest.Server
	log *logBuffer
}

// inBubble runs f in virtual time against one in-process server with 1 ms latency
// each way.
func inBubble(t *testing.T, f func(b *bundle), opts ...zktest.Option) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		opts = append([]zktest.Option{func(c *zktest.Config) { c.Latency = time.Millisecond }}, opts...)
		f(&bundle{t: t, srv: zktest.NewServer(t, opts...), log: &logBuffer{}})
	})
}

// process is one client with its guard.
type process struct {
	*dedup.Guard
	client *zklock.Client
	name   string
}

var processes atomic.Int64

// start opens a client and a guard that are closed with the test. The guard does not
// sweep by itself.
func (b *bundle) start(opts ...func(*zklock.Config, *dedup.Config)) *process {
	b.t.Helper()
	name := fmt.Sprintf("p%d", processes.Add(1))
	ccfg := zklock.Config{
		Servers: []string{b.srv.Addr()}, Dial: b.srv.Dialer(name), Clock: zktest.Clock{}, Seed: 1,
		TickTime: 2 * time.Second, Identifier: name,
		Logger: slog.New(slog.NewTextHandler(b.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	gcfg := dedup.Config{SweepInterval: -1, Owner: name}
	for _, o := range opts {
		o(&ccfg, &gcfg)
	}
	c, err := zklock.Connect(b.t.Context(), ccfg)
	if err != nil {
		b.t.Fatalf("Connect: %v", err)
	}
	g, err := dedup.New(c, gcfg)
	if err != nil {
		b.t.Fatalf("New: %v", err)
	}
	b.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		_ = g.Close(ctx)
		_ = c.Close()
	})
	return &process{g, c, name}
}

// do calls Do with a string outcome.
func (p *process) do(ctx context.Context, id string, fn func(ctx context.Context, c *dedup.Claim) (string, error), opts ...dedup.Option) (dedup.Result[string], error) {
	return dedup.Do(ctx, p.Guard, dedup.Key{ID: id}, dedup.Payload([]byte("payload")), fn, opts...)
}

// says is a function that returns s.
func says(s string) func(context.Context, *dedup.Claim) (string, error) {
	return func(context.Context, *dedup.Claim) (string, error) { return s, nil }
}

// fails is a function that returns err.
func fails(err error) func(context.Context, *dedup.Claim) (string, error) {
	return func(context.Context, *dedup.Claim) (string, error) { return "", err }
}

// mustNotRun fails the test if it is run.
func mustNotRun(t *testing.T) func(context.Context, *dedup.Claim) (string, error) {
	return func(context.Context, *dedup.Claim) (string, error) {
		t.Error("the function ran")
		return "", nil
	}
}

// warm makes the paths and the buckets of the index, so that requests can be told
// apart by what they are for.
func (b *bundle) warm(p *process) {
	b.t.Helper()
	for i := range 100 {
		if _, err := p.do(b.t.Context(), fmt.Sprint("warm", i), says("")); err != nil {
			b.t.Fatal(err)
		}
	}
	synctest.Wait()
}

// driverRecord reads the record of an id as the server has it.
func driverRecord(b *bundle, id string) (driver.Record, error) {
	data, err := b.srv.Get("/dedup/" + id)
	if err != nil {
		return driver.Record{}, err
	}
	return driver.ParseRecord(data, id)
}

// state is what the record of an id says.
func (b *bundle) state(id string) string {
	r, err := driverRecord(b, id)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%s %d", r.State, r.Attempt)
}

// tick lets a millisecond go by.
func (b *bundle) tick() {
	time.Sleep(time.Millisecond)
	synctest.Wait()
}

// atRest checks that no claim is left.
func (b *bundle) atRest() {
	b.t.Helper()
	time.Sleep(time.Second)
	synctest.Wait()
	for _, id := range b.srv.Children("/dedup") {
		if nodes := b.srv.Children("/dedup/" + id); len(nodes) != 0 {
			b.t.Errorf("left behind in %s: %v", id, nodes)
		}
	}
}

// requests is all that went over the wire and keeps no session alive, as text that is
// equal when the counts are.
func requests(c zktest.Counts) string {
	c.ByOp = maps.Clone(c.ByOp)
	delete(c.ByOp, zktest.OpPing)
	return fmt.Sprint(c.ByOp)
}

// logBuffer is a log that tests look into.
type logBuffer = testlog.Buffer
