// Package torture runs worker processes on a few locks for minutes while one source of faults breaks servers, clients
// and the lines between them, and then judges what all of them wrote down: see TestTorture. `make torture MINUTES=n`
// runs it.
//
// The test binary is also the worker and the store: role_test.go says which it is to be.
package torture
