package conformance

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Versions are the versions of ZooKeeper whose answers the files hold.
var Versions = []string{"3.8", "3.9"}

// File is one file of cases.
type File struct {
	Name  string // without folder and extension
	Path  string
	Cases []*Case
	Settings

	lines []line
}

// Settings say what server the cases of a file need.
type Settings struct {
	ExtendedTypes bool
	Servers       int  // 1, or the size of an ensemble
	Together      bool // the cases may run at the same time: their nodes have different names, transaction ids are not shown
}

// line is a line of the file that is not an answer.
type line struct {
	text string
	step *Step // set for a command
}

// Case is a run of commands that starts on a server with nothing on it.
type Case struct {
	Name      string
	Differs   map[string]string // version to the reason why zktest answers otherwise
	Unordered bool
	Steps     []*Step
}

// Step is one command and what each version answered.
type Step struct {
	Text    string
	Answers map[string][]string // by version
}

const indent = "    "

// Load reads all files of a folder.
func Load(dir string) ([]*File, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.txt"))
	if err != nil {
		return nil, err
	}
	if len(paths) == 0 {
		return nil, fmt.Errorf("conformance: no case files in %s", dir)
	}
	var files []*File
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		f, err := parse(string(text))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		f.Path, f.Name = path, strings.TrimSuffix(filepath.Base(path), ".txt")
		files = append(files, f)
	}
	return files, nil
}

func parse(text string) (*File, error) {
	f := &File{Settings: Settings{Servers: 1}}
	var c *Case
	var step *Step
	for i, text := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		fail := func(format string, args ...any) error {
			return fmt.Errorf("line %d: %s", i+1, fmt.Sprintf(format, args...))
		}
		if answer, ok := strings.CutPrefix(text, indent); ok {
			if step == nil {
				return nil, fail("an answer without a command")
			}
			step.add(answer)
			continue
		}
		step = nil
		word, rest, _ := strings.Cut(text, " ")
		switch {
		case text == "" || text[0] == '#':
		case word == "server":
			if err := f.set(rest); err != nil {
				return nil, fail("%v", err)
			}
		case word == "case":
			if slices.ContainsFunc(f.Cases, func(c *Case) bool { return c.Name == rest }) {
				return nil, fail("a second case %q", rest)
			}
			c = &Case{Name: rest, Differs: map[string]string{}}
			f.Cases = append(f.Cases, c)
		case c == nil:
			return nil, fail("a command before the first case")
		case word == "differs":
			version, reason, ok := strings.Cut(rest, ": ")
			if !ok || !slices.Contains(Versions, version) {
				return nil, fail("want differs VERSION: REASON")
			}
			c.Differs[version] = reason
		case text == "unordered":
			c.Unordered = true
		default:
			step = &Step{Text: text, Answers: map[string][]string{}}
			c.Steps = append(c.Steps, step)
		}
		f.lines = append(f.lines, line{text, step})
	}
	return f, nil
}

func (s *Settings) set(words string) error {
	for word := range strings.FieldsSeq(words) {
		switch word {
		case "extendedTypes":
			s.ExtendedTypes = true
		case "servers=3":
			s.Servers = 3
		case "together":
			s.Together = true
		default:
			return fmt.Errorf("unknown setting %q", word)
		}
	}
	return nil
}

// add takes an answer from the file: it belongs to the version that it is marked with, or to all.
func (s *Step) add(text string) {
	for _, v := range Versions {
		if answer, ok := strings.CutPrefix(text, v+"| "); ok {
			s.Answers[v] = append(s.Answers[v], answer)
			return
		}
	}
	for _, v := range Versions {
		s.Answers[v] = append(s.Answers[v], text)
	}
}

// String returns the text of the file.
func (f *File) String() string {
	var b strings.Builder
	for _, l := range f.lines {
		b.WriteString(l.text + "\n")
		if l.step != nil {
			l.step.write(&b)
		}
	}
	return b.String()
}

// write writes the answers; those of both versions, in the same place, are written once.
func (s *Step) write(b *strings.Builder) {
	x, y := s.Answers[Versions[0]], s.Answers[Versions[1]]
	show := func(mark string, list []string) {
		for _, text := range list {
			b.WriteString(indent + mark + text + "\n")
		}
	}
	for len(x) > 0 || len(y) > 0 {
		same := 0
		for same < len(x) && same < len(y) && x[same] == y[same] {
			same++
		}
		show("", x[:same])
		x, y = x[same:], y[same:]
		// As many lines of each as are not the next common ones.
		i, j := divergence(x, y)
		show(Versions[0]+"| ", x[:i])
		show(Versions[1]+"| ", y[:j])
		x, y = x[i:], y[j:]
	}
}

// divergence returns how many lines of x and of y come before the first that they have in common.
func divergence(x, y []string) (int, int) {
	for sum := 1; sum < len(x)+len(y); sum++ {
		for i := max(0, sum-len(y)); i <= sum && i <= len(x); i++ {
			if j := sum - i; i < len(x) && j < len(y) && x[i] == y[j] {
				return i, j
			}
		}
	}
	return len(x), len(y)
}

// Keep puts the answers of one version into the case.
func (c *Case) Keep(version string, answers [][]string) {
	for i, step := range c.Steps {
		step.Answers[version] = answers[i]
	}
}
