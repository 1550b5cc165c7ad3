package main

import (
	"fmt"
	"net"
	"net/url"
	"path"
	"strconv"
	"strings"

	"github.com/go-zklock/zklock"
)

// lockFlags name a lock.
type lockFlags struct {
	Key  string `short:"k" group:"lock" xor:"name" placeholder:"KEY" help:"The lock's name, any text of up to 1024 bytes."`
	Path string `group:"lock" xor:"name" placeholder:"/PATH" help:"The lock's path, instead of a key: to take turns with services that use Curator, kazoo or go-zookeeper there."`
}

// path is the lock's path below the chroot.
func (f *lockFlags) path(root string) (string, error) {
	switch {
	case f.Path != "":
		return f.Path, zklock.ValidatePath(f.Path)
	case f.Key != "":
		return keyPath(root, f.Key)
	default:
		return "", usagef("which lock? Give --key KEY or --path /PATH")
	}
}

// key is the lock's name as the command sees it.
func (f *lockFlags) key() string {
	if f.Path != "" {
		return keyOf(f.Path)
	}
	return f.Key
}

// keyPath is where the lock of a key is.
func keyPath(root, key string) (string, error) {
	element, err := zklock.EscapeKey(key)
	if err != nil {
		return "", err
	}
	lockPath := strings.TrimRight(root, "/") + "/" + element
	return lockPath, zklock.ValidatePath(lockPath)
}

// keyOf is the key that a path stands for: its last element.
func keyOf(lockPath string) string {
	element := path.Base(lockPath)
	if key, err := url.PathUnescape(element); err == nil {
		return key
	}
	return element
}

// validAddress checks a host:port of a flag.
func validAddress(flag, address string) error {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("%s %q: has to be HOST:PORT: %w", flag, address, err)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		return fmt.Errorf("%s %q: the port has to be a number from 0 to 65535", flag, address)
	}
	return nil
}
