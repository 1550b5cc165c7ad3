package examples

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/dedup"
	"github.com/go-zklock/zklock/zktest"
)

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// docs returns the texts for people, with their paths from the repository's root.
func docs(t *testing.T) []string {
	t.Helper()
	all := []string{"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "deploy/README.md"}
	more, err := filepath.Glob("../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range more {
		all = append(all, "docs/"+filepath.Base(name))
	}
	return all
}

// fences returns the code blocks of a language.
func fences(text, language string) []string {
	var blocks []string
	for _, m := range regexp.MustCompile("(?s)```"+language+"\n(.*?)```").FindAllStringSubmatch(text, -1) {
		blocks = append(blocks, m[1])
	}
	return blocks
}

// unindented is a text whose lines have no white space at their ends, between two line ends.
func unindented(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString("\n" + strings.TrimSpace(line))
	}
	return b.String() + "\n"
}

// Code in the README and in the pages about other libraries is an excerpt of the examples. Those in Go compile and
// are tested; migrate's test looks at the others.
func TestReadmeCode(t *testing.T) {
	var sources []string
	here := os.DirFS(".")
	err := fs.WalkDir(here, ".", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !slices.Contains([]string{".go", ".java", ".py"}, filepath.Ext(path)) {
			return err
		}
		text, err := fs.ReadFile(here, path)
		sources = append(sources, unindented(string(text)))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for doc, least := range map[string]int{
		"README.md": 5, "docs/from-curator.md": 2, "docs/from-kazoo.md": 2, "docs/from-go-zookeeper-lock.md": 2,
	} {
		text := read(t, doc)
		blocks := slices.Concat(fences(text, "go"), fences(text, "sql"), fences(text, "java"), fences(text, "python"))
		if len(blocks) < least {
			t.Errorf("%s: only %d blocks of code found", doc, len(blocks))
		}
		for _, block := range blocks {
			// The alignment of a trailing comment depends on the lines around it.
			if !slices.ContainsFunc(sources, func(s string) bool { return strings.Contains(s, unindented(block)) }) {
				t.Errorf("no example has this block of %s:\n%s", doc, block)
			}
		}
	}
}

// Every setting is in the table, and nothing else is.
func TestReadmeSettings(t *testing.T) {
	_, rest, _ := strings.Cut(read(t, "README.md"), "\n## Settings\n")
	section, _, _ := strings.Cut(rest, "\n## ")
	var got, want []string
	for _, m := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\|").FindAllStringSubmatch(section, -1) {
		got = append(got, m[1])
	}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[zklock.Config]()) {
		want = append(want, f.Name)
	}
	if !slices.Equal(got, want) {
		t.Errorf("the README has the settings\n%v, Config has\n%v", got, want)
	}
}

// Every metric is in the README, and no other.
func TestReadmeMetrics(t *testing.T) {
	reg := &names{}
	srv := zktest.NewServer(t)
	client, err := zklock.Connect(t.Context(), zklock.Config{Servers: []string{srv.Addr()}, Dial: srv.Dial, Registerer: reg})
	if err != nil {
		t.Fatal(err)
	}
	guard, err := dedup.New(client, dedup.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := guard.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	readme := read(t, "README.md")
	for _, name := range reg.all {
		if !regexp.MustCompile("`" + name + "[`{]").MatchString(readme) {
			t.Errorf("the README lacks the metric %s", name)
		}
	}
	for _, doc := range docs(t) {
		for _, name := range regexp.MustCompile(`\b(?:zk(?:lock)?|dedup)_[a-z_]+`).FindAllString(read(t, doc), -1) {
			if name = regexp.MustCompile(`_(bucket|count)$`).ReplaceAllString(name, ""); !slices.Contains(reg.all, name) {
				t.Errorf("%s: there is no metric %s", doc, name)
			}
		}
	}
	if len(reg.all) < 15 {
		t.Errorf("only %d metrics found", len(reg.all))
	}
}

// names is a Registerer that keeps what metrics are called.
type names struct{ all []string }

func (n *names) Register(c prometheus.Collector) error {
	ch := make(chan *prometheus.Desc, 10)
	c.Describe(ch)
	close(ch)
	for d := range ch {
		n.all = append(n.all, regexp.MustCompile(`fqName: "(\w+)"`).FindStringSubmatch(d.String())[1])
	}
	return nil
}

func (n *names) MustRegister(...prometheus.Collector) {}
func (n *names) Unregister(prometheus.Collector) bool { return false }

// Every make target, program and file that a text names is there.
func TestDocsPointToThings(t *testing.T) {
	makefile := read(t, "Makefile")
	for _, doc := range docs(t) {
		text := read(t, doc)
		for _, m := range regexp.MustCompile("`make ([a-z-]+)").FindAllStringSubmatch(text, -1) {
			if !strings.Contains(makefile, "\n"+m[1]+":") {
				t.Errorf("%s: there is no make target %s", doc, m[1])
			}
		}
		for _, m := range regexp.MustCompile(`go run (\./\S+?)[ \x60\n]`).FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(filepath.Join("..", m[1])); err != nil {
				t.Errorf("%s: %v", doc, err)
			}
		}
		for _, m := range regexp.MustCompile(`\]\(([^)]+)\)`).FindAllStringSubmatch(text, -1) {
			target, anchor, _ := strings.Cut(m[1], "#")
			if strings.HasPrefix(target, "https://") {
				continue
			}
			file := doc
			if target != "" {
				file = filepath.Join(filepath.Dir(doc), target)
			}
			if _, err := os.Stat(filepath.Join("..", file)); err != nil {
				t.Errorf("%s: %v", doc, err)
			} else if anchor != "" && !slices.Contains(anchors(read(t, file)), "#"+anchor) {
				t.Errorf("%s: no heading for %s", doc, m[1])
			}
		}
	}
}

// anchors returns what links to the headings of a text look like.
func anchors(text string) []string {
	var all []string
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(text, -1) {
		name := regexp.MustCompile(`[^a-z0-9 -]`).ReplaceAllString(strings.ToLower(m[1]), "")
		all = append(all, "#"+strings.ReplaceAll(name, " ", "-"))
	}
	return all
}

// Every file of the root package is in the layout of CONTRIBUTING.md.
func TestLayout(t *testing.T) {
	text := read(t, "CONTRIBUTING.md")
	files, err := filepath.Glob("../*.go")
	if err != nil {
		t.Fatal(err)
	}
	var missing bytes.Buffer
	for _, f := range files {
		if name := filepath.Base(f); !strings.HasSuffix(name, "_test.go") && !regexp.MustCompile(`\b`+name+`\b`).MatchString(text) {
			fmt.Fprintf(&missing, " %s", name)
		}
	}
	if missing.Len() > 0 {
		t.Errorf("CONTRIBUTING.md does not say what is in%s", &missing)
	}
}
