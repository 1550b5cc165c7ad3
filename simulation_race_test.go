//go:build race

package zklock

// raceDetector says that the race detector is on, which makes everything slower.
const raceDetector = true
