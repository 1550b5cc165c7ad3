package boottime

import (
	"time"

	"golang.org/x/sys/unix"
)

var processStart = time.Now()

func sinceBoot() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		// Kernels before 2.6.39 and some sandboxes: the monotonic clock is the
		// best there is.
		return time.Since(processStart)
	}
	return time.Duration(ts.Nano())
}
