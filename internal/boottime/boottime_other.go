//go:build !linux

package boottime

import "time"

var processStart = time.Now()

// sinceBoot is the monotonic clock. macOS and Windows let it run during sleep
// or not, depending on version; doc.go names Linux as the platform where suspend
// is counted.
func sinceBoot() time.Duration { return time.Since(processStart) }
