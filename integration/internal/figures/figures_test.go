package figures

import (
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestTablesAndTimeline(t *testing.T) {
	t.Setenv(EnvFolder, t.TempDir())
	Record(t, "cut", "3.9", Lead, 3*time.Second, time.Second, 2*time.Second)
	Record(t, "cut", "3.9", Recovery, time.Millisecond)
	if err := WriteTables(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(Folder(), tableName))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| TestTablesAndTimeline | cut | 3.9 | lead | 3 | 1.000 | 2.000 | 3.000 |",
		"| TestTablesAndTimeline | cut | 3.9 | recovery | 1 | 0.001 | 0.001 | 0.001 |",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no line %q in\n%s", want, text)
		}
	}
	Timeline(t, "line", "a cut", []string{"ours", "theirs"}, []Bar{
		{Row: 0, From: -time.Second, Till: 4 * time.Second, State: Holds},
		{Row: 0, From: 5 * time.Second, Till: 9 * time.Second, State: Rival},
		{Row: 1, From: -time.Second, Till: 7 * time.Second, State: Doubts},
		{From: 0, Till: 8 * time.Second, State: Faulted},
	})
	file, err := os.Open(filepath.Join(Folder(), "line.png"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := png.Decode(file); err != nil {
		t.Error(err)
	}
}
