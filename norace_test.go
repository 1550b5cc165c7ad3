//go:build !race

package zklock

const raceDetector = false

const usualSeeds = 300

// often is how many times a test repeats what has to hold n times.
func often(n int) int { return n }
