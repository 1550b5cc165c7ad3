//go:build !linux

package zkcluster

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// SlowDisk needs Linux.
func (s *Server) SlowDisk(context.Context, time.Duration) (stop func() error, err error) {
	return nil, fmt.Errorf("slow disk: Linux is needed: %w", errors.ErrUnsupported)
}
