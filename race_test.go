//go:build race

package zklock

// raceDetector says that the race detector is on, which makes everything slower.
const raceDetector = true

// usualSeeds are fewer here, so that the package's tests end within a minute on two cores.
const usualSeeds = 150

// often is how many times a test repeats what has to hold n times: fewer here, for the
// same reason. make test-unit runs those tests a second time without the detector.
func often(n int) int { return n / 50 }
