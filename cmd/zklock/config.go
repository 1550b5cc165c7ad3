package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"

	"github.com/alecthomas/kong"
)

// configFlag names the file with settings.
type configFlag string

// configEnv names it too.
const configEnv = "ZKLOCK_CONFIG"

// configFiles are looked at in this order; the first that is there is the one.
func configFiles() []string {
	const name = "zklock.json"
	system := filepath.Join("/etc", name)
	for _, dir := range []string{os.Getenv("XDG_CONFIG_HOME"), filepath.Join(os.Getenv("HOME"), ".config")} {
		// A relative one means the working directory, where anybody may have left a file.
		if filepath.IsAbs(dir) {
			return []string{filepath.Join(dir, name), system}
		}
	}
	return []string{system}
}

// settings resolves flags from the file. A flag on the command line goes before the
// environment, that before the file, and that before the default.
type settings struct {
	name   string
	values map[string]any // by the flags' names; nil before the file was looked for
}

// Resolve implements kong.Resolver.
func (s *settings) Resolve(ctx *kong.Context, path *kong.Path, flag *kong.Flag) (any, error) {
	if s.values == nil {
		if err := s.load(ctx); err != nil {
			return nil, err
		}
	}
	if inEnvironment(flag) {
		return nil, nil
	}
	// Of flags that exclude one another, the one that goes before puts the others aside.
	for _, other := range path.Flags {
		if other != flag && exclude(flag, other) && (onCommandLine(ctx, other) || inEnvironment(other)) {
			return nil, nil
		}
	}
	if list, ok := s.values[flag.Name].([]any); ok {
		return listFor(flag, list)
	}
	return s.values[flag.Name], nil
}

// listFor is a list of strings and numbers with those that a flag's elements are: kong
// converts no element.
func listFor(flag *kong.Flag, list []any) (any, error) {
	if flag.Target.Kind() != reflect.Slice || flag.Target.Type().Elem().Kind() != reflect.Int {
		return list, nil
	}
	numbers := make([]any, len(list))
	for i, element := range list {
		n, err := strconv.Atoi(fmt.Sprint(element))
		if err != nil {
			return nil, fmt.Errorf("%q has to be a number", element)
		}
		numbers[i] = n
	}
	return numbers, nil
}

// exclude says whether two flags cannot be used together.
func exclude(a, b *kong.Flag) bool {
	return slices.ContainsFunc(a.Xor, func(group string) bool { return slices.Contains(b.Xor, group) })
}

// onCommandLine says whether a flag was given there.
func onCommandLine(ctx *kong.Context, flag *kong.Flag) bool {
	return slices.ContainsFunc(ctx.Path, func(p *kong.Path) bool { return p.Flag == flag && !p.Resolved })
}

// inEnvironment says whether a variable sets a flag.
func inEnvironment(flag *kong.Flag) bool {
	return slices.ContainsFunc(flag.Envs, func(env string) bool { _, set := os.LookupEnv(env); return set })
}

// Validate implements kong.Resolver. The file is checked when it is read.
func (s *settings) Validate(*kong.Application) error { return nil }

// ignoreEmptyVariables makes variables that are set and empty count as not set: a unit or
// a container often passes on what nobody has filled in.
func ignoreEmptyVariables(node *kong.Node) {
	for _, f := range node.Flags {
		var filled []string
		for _, env := range f.Envs {
			if os.Getenv(env) != "" {
				filled = append(filled, env)
			}
		}
		f.Envs, f.Tag.Envs = filled, filled
	}
	for _, child := range node.Children {
		ignoreEmptyVariables(child)
	}
}

// load reads the file, if there is one.
func (s *settings) load(ctx *kong.Context) error {
	s.values = make(map[string]any)
	s.name = configFile(ctx)
	if s.name == "" {
		return nil
	}
	text, err := os.ReadFile(s.name)
	if err != nil {
		return fmt.Errorf("the file with settings: %w", err)
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	if err := dec.Decode(&s.values); err != nil {
		return fmt.Errorf("%s: not a JSON object of flag names and values: %w", s.name, err)
	}
	known := settable(ctx.Model.Node)
	for name, value := range s.values {
		if !slices.Contains(known, name) {
			return fmt.Errorf("%s: %q is no setting; the names are those of the flags, without the dashes", s.name, name)
		}
		switch v := value.(type) {
		case string:
		case []any:
			for i, element := range v {
				switch element.(type) {
				case string, json.Number:
					v[i] = fmt.Sprint(element)
				default:
					return fmt.Errorf("%s: %q has to be a list of strings and numbers only", s.name, name)
				}
			}
		case bool, json.Number:
			s.values[name] = fmt.Sprint(v)
		default:
			return fmt.Errorf("%s: %q has to be a string, a number, true, false, or a list of strings and numbers", s.name, name)
		}
	}
	return nil
}

// configFile is the file to read, or "".
func configFile(ctx *kong.Context) string {
	for _, p := range ctx.Path { // the flag is not applied yet
		if p.Flag == nil {
			continue
		}
		if name, ok := ctx.FlagValue(p.Flag).(configFlag); ok {
			return string(name)
		}
	}
	if name := os.Getenv(configEnv); name != "" {
		return name
	}
	for _, name := range configFiles() {
		if _, err := os.Stat(name); err == nil {
			return name
		}
	}
	return ""
}

// settable lists the flags that a file may set: all of all commands but those that do
// something by themselves.
func settable(node *kong.Node) []string {
	var names []string
	for _, f := range node.Flags {
		if f.Name != "help" && f.Name != "version" && f.Name != "config" {
			names = append(names, f.Name)
		}
	}
	for _, child := range node.Children {
		names = append(names, settable(child)...)
	}
	return names
}
