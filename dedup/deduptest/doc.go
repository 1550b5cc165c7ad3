// Package deduptest tests implementations of driver.Store, and has one in memory for
// the tests of what is built on package dedup.
//
// A storage passes if Run passes. Its test tells how to open processes that share data,
// how to end one without a word, and, where it can, how to cut one off:
//
//	func TestStore(t *testing.T) {
//		deduptest.Run(t, func(t *testing.T, test func(*testing.T, *deduptest.Harness)) {
//			test(t, &deduptest.Harness{Open: …})
//		})
//	}
//
// Each case gets a harness of its own, without data. It may run in virtual time
// (testing/synctest) or in parallel with others: that is for the function to arrange.
//
// The cases follow the comments of package driver. What depends on the storage they
// leave to its own tests: strangers on a key's path, answers that are lost one by one,
// how far a Lookup may lag behind, and what a call costs.
package deduptest
