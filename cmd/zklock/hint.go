package main

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// A message that proposes a command proposes it with the flags that say which ensemble,
// if they were given as flags: it has to work when it is typed.

// repeated are those flags. Credentials are not among them: what is printed lands in logs.
var repeated = []string{"config", "servers", "root", "tls", "tls-ca", "tls-cert", "tls-key", "tls-server-name"}

// given is a flag of the command line.
type given struct{ name, text string }

// AfterApply is called by kong. It notes what was given.
func (f *ensembleFlags) AfterApply(ctx *kong.Context) error { //nolint:unparam // kong asks for it
	for _, p := range ctx.Path {
		if p.Flag == nil || p.Resolved || !slices.Contains(repeated, p.Flag.Name) {
			continue
		}
		f.given = slices.DeleteFunc(f.given, func(g given) bool { return g.name == p.Flag.Name }) // the last one counts
		switch value := ctx.FlagValue(p.Flag).(type) {
		case bool:
			if value {
				f.given = append(f.given, given{p.Flag.Name, "--" + p.Flag.Name})
			}
		default:
			f.given = append(f.given, given{p.Flag.Name, "--" + p.Flag.Name + " " + shellWord(fmt.Sprint(value))})
		}
	}
	return nil
}

// hint is a command to type next. The words behind the flags are keys.
func (f *ensembleFlags) hint(subcommand string, keys ...string) string {
	return "zklock " + strings.Join(append([]string{subcommand}, f.arguments(f.given, keys...)...), " ")
}

// arguments are flags and keys as a shell takes them.
func (*ensembleFlags) arguments(flags []given, keys ...string) []string {
	var words []string
	for _, g := range flags {
		words = append(words, g.text)
	}
	for _, key := range keys {
		if strings.HasPrefix(key, "-") {
			words = append(words, "--")
		}
		words = append(words, shellWord(key))
	}
	return words
}

// shown is the key as zklock show takes it, with the flags before it.
func (c *runCmd) shown() string {
	flags := c.given
	if c.Path != "" {
		flags = slices.DeleteFunc(slices.Clone(flags), func(g given) bool { return g.name == "root" })
		flags = append(flags, given{"root", "--root " + shellWord(path.Dir(c.Path))})
	}
	return strings.Join(c.arguments(flags, c.key()), " ")
}

// shown is the key as zklock show takes it, with the flags before it.
func (c *onceCmd) shown() string {
	return strings.Join(c.arguments(c.given, c.recordFlags.shown()), " ")
}

// shellWord is a text as one word of a shell, as it is if that is so already.
func shellWord(text string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./:,@%+=", r)
	}
	if text != "" && strings.IndexFunc(text, func(r rune) bool { return !plain(r) }) < 0 {
		return text
	}
	return singleQuoted(text)
}
