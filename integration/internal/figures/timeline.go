package figures

import (
	"fmt"
	"image/color"
	"os"
	"path/filepath"
	"testing"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

// State says how a bar of a time line is drawn.
type State int

// The states.
const (
	Holds    State = iota // somebody holds the lock and has no doubt
	Doubts                // its library told it that the connection is in doubt
	Rival                 // the next one holds the lock
	Faulted               // a fault lasts
	numState              // none of them
)

var looks = [numState]struct {
	name  string
	color color.Color
}{
	Holds:   {"holds", color.RGBA{0x2a, 0x7f, 0x4f, 0xff}},
	Doubts:  {"holds, told to pause", color.RGBA{0xe0, 0xb0, 0x30, 0xff}},
	Rival:   {"the next holder", color.RGBA{0x2f, 0x5f, 0xb0, 0xff}},
	Faulted: {"fault", color.RGBA{0xd8, 0xd8, 0xd8, 0xff}},
}

// Bar is one interval of a row, from the beginning of the fault.
type Bar struct {
	Row        int
	From, Till time.Duration
	State      State
}

// Timeline draws bars in rows as name.png. Rows are listed from top to bottom.
func Timeline(t testing.TB, name, title string, rows []string, bars []Bar) {
	t.Helper()
	if Folder() == "" {
		return
	}
	if err := timeline(filepath.Join(Folder(), name+".png"), title, rows, bars); err != nil {
		t.Errorf("time line %s: %v", name, err)
	}
}

func timeline(file, title string, rows []string, bars []Bar) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil { //nolint:gosec // for everybody to read
		return err
	}
	p := plot.New()
	p.Title.Text = title
	p.X.Label.Text = "seconds since the fault"
	p.X.Tick.Marker = seconds{}
	height := func(row int) float64 { return float64(len(rows) - 1 - row) }
	var ticks []plot.Tick
	for i, row := range rows {
		ticks = append(ticks, plot.Tick{Value: height(i), Label: row})
	}
	p.Y.Tick.Marker = plot.ConstantTicks(ticks)
	p.Y.Tick.LineStyle.Width = 0
	p.Y.Min, p.Y.Max = -0.6, float64(len(rows))-0.4
	seen := [numState]bool{}
	add := func(b Bar, low, high float64) error {
		box, err := plotter.NewPolygon(plotter.XYs{
			{X: b.From.Seconds(), Y: low}, {X: b.Till.Seconds(), Y: low}, {X: b.Till.Seconds(), Y: high}, {X: b.From.Seconds(), Y: high},
		})
		if err != nil {
			return err
		}
		box.Color = looks[b.State].color
		box.LineStyle.Width = 0
		p.Add(box)
		if !seen[b.State] {
			seen[b.State] = true
			p.Legend.Add(looks[b.State].name, box)
		}
		return nil
	}
	// What lies behind comes first.
	for _, b := range bars {
		if b.State == Faulted {
			if err := add(b, p.Y.Min, height(0)+0.5); err != nil {
				return err
			}
		}
	}
	for _, b := range bars {
		if b.State != Faulted {
			if err := add(b, height(b.Row)-0.3, height(b.Row)+0.3); err != nil {
				return err
			}
		}
	}
	p.Legend.Top = true
	p.Legend.YOffs = vg.Points(-4)
	p.Legend.XOffs = vg.Points(-4)
	p.Legend.Padding = vg.Points(2)
	p.Legend.TextStyle.Font.Size = vg.Points(10)
	p.Legend.ThumbnailWidth = vg.Points(18)
	p.Y.Max += 1.2 // room for the legend
	p.Title.Padding = vg.Points(6)
	p.BackgroundColor = color.White
	w, h := vg.Points(720), vg.Points(float64(110+32*len(rows)))
	return p.Save(w, h, file)
}

// seconds marks whole seconds.
type seconds struct{}

// Ticks implements plot.Ticker.
func (seconds) Ticks(low, high float64) []plot.Tick {
	var ticks []plot.Tick
	step := 1
	for (high-low)/float64(step) > 20 {
		step *= 2
	}
	for s := int(low); float64(s) <= high; s++ {
		tick := plot.Tick{Value: float64(s)}
		if s%step == 0 {
			tick.Label = fmt.Sprint(s)
		}
		ticks = append(ticks, tick)
	}
	return ticks
}
