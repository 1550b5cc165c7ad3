//go:build !race

package zklock

const raceDetector = false
