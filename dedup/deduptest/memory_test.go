package deduptest_test

import (
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/go-zklock/zklock/dedup/deduptest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func memoryHarness() *deduptest.Harness {
	first := deduptest.NewMemory()
	return &deduptest.Harness{
		Open: func(t testing.TB) *deduptest.Process {
			m := first.Another()
			t.Cleanup(m.Close)
			return &deduptest.Process{Store: m, Kill: m.Kill, Close: m.Close, Lose: m.Lose, Suspend: m.Suspend}
		},
		Put:       func(key string, data []byte) error { first.Put(key, data); return nil },
		Retention: time.Second,
		Margin:    time.Second,
		Arrival:   10 * time.Millisecond,
	}
}

func TestMemory(t *testing.T) {
	deduptest.Run(t, func(t *testing.T, test func(*testing.T, *deduptest.Harness)) {
		synctest.Test(t, func(t *testing.T) { test(t, memoryHarness()) })
	})
}

// In real time, where calls are at once in other ways.
func TestMemoryInRealTime(t *testing.T) {
	deduptest.Run(t, func(t *testing.T, test func(*testing.T, *deduptest.Harness)) {
		t.Parallel()
		test(t, memoryHarness())
	})
}
