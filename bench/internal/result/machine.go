package result

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strings"
)

// Machine says in a line on what was measured.
func Machine() string {
	cpu := field("/proc/cpuinfo", "model name")
	if cpu == "" {
		cpu = runtime.GOARCH
	}
	memory := field("/proc/meminfo", "MemTotal")
	var kib int64
	if _, err := fmt.Sscan(memory, &kib); err == nil {
		memory = fmt.Sprintf("%.0f GiB", float64(kib)/(1<<20))
	}
	return fmt.Sprintf("%s, %d cores, %s of memory, %s %s", cpu, runtime.NumCPU(), memory, runtime.GOOS, line("/proc/sys/kernel/osrelease"))
}

// Load is how many processes wanted to run on average, over 1, 5 and 15 minutes.
func Load() string {
	fields := strings.Fields(line("/proc/loadavg"))
	return strings.Join(fields[:min(3, len(fields))], ", ")
}

func line(name string) string {
	text, err := os.ReadFile(name)
	if err != nil {
		return ""
	}
	return string(bytes.TrimSpace(text))
}

func field(name, key string) string {
	for l := range strings.Lines(line(name)) {
		if k, v, ok := strings.Cut(l, ":"); ok && strings.TrimSpace(k) == key {
			return strings.TrimSpace(v)
		}
	}
	return ""
}
