// Package figure draws hand-overs against the number of waiters.
package figure

import (
	"fmt"
	"image/color"
	"os"
	"slices"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"

	"github.com/go-zklock/zklock/bench/internal/cases"
	"github.com/go-zklock/zklock/integration/peers"
)

// colours can be told apart in all common kinds of colour blindness (Okabe and Ito).
var colours = map[peers.Library]color.RGBA{
	peers.Curator:     {R: 0xe6, G: 0x9f, B: 0x00, A: 0xff},
	peers.Kazoo:       {R: 0x00, G: 0x9e, B: 0x73, A: 0xff},
	peers.GoZooKeeper: {R: 0x56, G: 0xb4, B: 0xe9, A: 0xff},
	peers.Zklock:      {R: 0xd5, G: 0x5e, B: 0x00, A: 0xff},
}

var shapes = map[peers.Library]draw.GlyphDrawer{
	peers.Curator: draw.SquareGlyph{}, peers.Kazoo: draw.TriangleGlyph{}, peers.GoZooKeeper: draw.PyramidGlyph{}, peers.Zklock: draw.CircleGlyph{},
}

// Write draws the crowds into a PNG file.
func Write(name string, crowds []cases.Crowd) (err error) {
	left, err := panel(crowds, "Time of a hand-over (median)", "ms", func(c cases.Crowd) float64 { return float64(c.P50) / float64(time.Millisecond) })
	if err != nil {
		return err
	}
	right, err := panel(crowds, "Requests of a hand-over", "requests", func(c cases.Crowd) float64 { return c.Writes + c.Reads })
	if err != nil {
		return err
	}
	img := vgimg.New(24*vg.Centimeter, 11*vg.Centimeter)
	canvases := plot.Align([][]*plot.Plot{{left, right}}, draw.Tiles{Rows: 1, Cols: 2, PadX: vg.Centimeter / 2, PadRight: vg.Centimeter / 4}, draw.New(img))
	left.Draw(canvases[0][0])
	right.Draw(canvases[0][1])
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer func() {
		if e := f.Close(); err == nil {
			err = e
		}
	}()
	_, err = vgimg.PngCanvas{Canvas: img}.WriteTo(f)
	return err
}

func panel(crowds []cases.Crowd, title, unit string, value func(cases.Crowd) float64) (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text = title
	p.X.Label.Text = "waiters in one process"
	p.Y.Label.Text = unit
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.Legend.Top, p.Legend.Left = true, true
	p.Add(plotter.NewGrid())
	least, most := 0.0, 0.0
	for _, library := range peers.Libraries {
		var points plotter.XYs
		for _, c := range crowds {
			if v := value(c); c.Library == library && v > 0 {
				points = append(points, plotter.XY{X: float64(c.Waiters), Y: v})
				if least == 0 || v < least {
					least = v
				}
				most = max(most, v)
			}
		}
		if len(points) == 0 {
			return nil, fmt.Errorf("%s: no points of %s", title, library)
		}
		line, glyphs, err := plotter.NewLinePoints(points)
		if err != nil {
			return nil, err
		}
		line.Color, line.Width = colours[library], vg.Points(1.5)
		glyphs.Color, glyphs.Shape, glyphs.Radius = colours[library], shapes[library], vg.Points(3)
		p.Add(line, glyphs)
		p.Legend.Add(string(library), line, glyphs)
	}
	p.Y.Min, p.Y.Max = least/1.5, most*4 // with room for the legend
	p.X.Tick.Marker = ticks(1, 10, 100, 1000, 10_000, 100_000)
	p.Y.Tick.Marker = ticks(0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)
	return p, nil
}

// ticks are marks at round numbers, written as such.
func ticks(at ...float64) plot.Ticker {
	return plot.TickerFunc(func(least, most float64) []plot.Tick {
		var marks []plot.Tick
		for _, v := range at {
			if v >= least && v <= most {
				marks = append(marks, plot.Tick{Value: v, Label: fmt.Sprintf("%g", v)})
			}
		}
		return slices.Clip(marks)
	})
}
