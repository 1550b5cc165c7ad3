package cases

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
)

// ManyKeys runs the test of package dedup that lets keys come over one day and sweeps them in the next, in virtual time,
// and returns what it says of each number of keys, the least first.
func ManyKeys(ctx context.Context, size Size) ([]string, error) {
	cmd := exec.CommandContext(ctx, "go", "test", "-run", "^TestManyKeys$", "-count", "1", "-v",
		"github.com/go-zklock/zklock/dedup", "-keys", strconv.Itoa(size.Keys))
	out, err := cmd.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("TestManyKeys: %w\n%s", err, out)
	}
	var lines []string
	for in := bufio.NewScanner(bytes.NewReader(out)); in.Scan(); {
		if _, text, ok := strings.Cut(in.Text(), ".go:"); ok && strings.Contains(text, " keys: ") {
			_, text, _ = strings.Cut(text, ": ")
			lines = append([]string{strings.TrimSpace(text)}, lines...)
		}
	}
	if len(lines) == 0 {
		return nil, fmt.Errorf("TestManyKeys says nothing:\n%s", out)
	}
	return lines, nil
}
