// Package mutexmodel is what a history of holds is checked against: a mutex.
package mutexmodel

import (
	"fmt"
	"math"

	"github.com/anishathalye/porcupine"

	"github.com/go-zklock/zklock"
)

// Hold is one hold of the lock: asked for at Asked, certain at Got, over at End for its holder and at Done for
// everybody; Done is 0 if it is not known when.
type Hold struct {
	Token                 int64
	Asked, Got, End, Done int64
}

// op is an input of the model: a lock, or the unlock, of the hold with a token.
type op struct {
	unlock bool
	token  int64
}

func (o op) String() string {
	if o.unlock {
		return fmt.Sprintf("unlock %v", zklock.Token(o.token))
	}
	return fmt.Sprintf("lock %v", zklock.Token(o.token))
}

// Model is a mutex. Its state is the token of the hold, 0 for none.
var Model = porcupine.Model{
	Init: func() any { return int64(0) },
	Step: func(state, input, _ any) (bool, any) {
		holder, o := state.(int64), input.(op)
		if o.unlock {
			return holder == o.token, int64(0)
		}
		return holder == 0, o.token
	},
	DescribeOperation: func(input, _ any) string { return input.(op).String() },
}

// Operations are the operations of holds. One whose end is not known may end at any time after its holder let go.
func Operations(holds []Hold) []porcupine.Operation {
	var ops []porcupine.Operation
	for i, h := range holds {
		done := h.Done
		if done == 0 {
			done = math.MaxInt64
		}
		ops = append(ops,
			porcupine.Operation{ClientId: i, Input: op{token: h.Token}, Call: h.Asked, Return: h.Got},
			porcupine.Operation{ClientId: i, Input: op{unlock: true, token: h.Token}, Call: h.End, Return: done})
	}
	return ops
}
