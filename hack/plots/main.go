// Command plots draws panels of the dashboard from what Prometheus answered in an end-to-end run:
//
//	E2E_DRAWINGS=$PWD/drawings.json hack/e2e.sh -test.run TestPrometheusDrawings
//	go -C hack/plots run . $PWD/drawings.json $PWD/docs/images
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
)

// drawing is a panel with its data, as test/e2e writes it.
type drawing struct {
	Title string `json:"title"`
	Unit  string `json:"unit"`
	Lines []line `json:"lines"`
}

type line struct {
	Legend string       `json:"legend"`
	Points [][2]float64 `json:"points"` // seconds, value
}

// pictures are the panels that docs/monitoring.md shows, by title, and their files.
func pictures() map[string]string {
	return map[string]string{
		"Pods by state": "pods-by-state.png", "Programming time by hook": "programming-time.png",
		"Time the runtime is held": "runtime-held.png", "Repairs by kind": "repairs.png",
	}
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "plots:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 2 {
		return errors.New("usage: plots DRAWINGS.json DIRECTORY")
	}
	data, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	var drawings []drawing
	if err := json.Unmarshal(data, &drawings); err != nil {
		return fmt.Errorf("read %s: %w", args[0], err)
	}
	drawn := 0
	for _, d := range drawings {
		file, ok := pictures()[d.Title]
		if !ok {
			continue
		}
		if err := d.draw(filepath.Join(args[1], file)); err != nil {
			return fmt.Errorf("draw %q: %w", d.Title, err)
		}
		drawn++
	}
	if drawn != len(pictures()) {
		return fmt.Errorf("%s has %d of the %d panels", args[0], drawn, len(pictures()))
	}
	return nil
}

// draw writes a picture of the lines that are not 0 throughout.
func (d drawing) draw(file string) error {
	p := plot.New()
	p.Title.Text, p.X.Label.Text = d.Title, "seconds"
	scale, unit := d.scale()
	p.Y.Label.Text, p.Y.Min = unit, 0
	p.Legend.Top, p.Legend.Left = true, true
	p.Add(plotter.NewGrid())
	slices.SortFunc(d.Lines, func(a, b line) int { return strings.Compare(a.Legend, b.Legend) })
	for i, l := range d.Lines {
		points := l.xys(scale)
		if len(points) == 0 {
			continue
		}
		drawn, err := plotter.NewLine(points)
		if err != nil {
			return err
		}
		drawn.Width, drawn.Color = vg.Points(1.5), plotutil.Color(i)
		p.Add(drawn)
		p.Legend.Add(l.Legend, drawn)
	}
	p.Y.Max *= 1.4 // room for the legend
	return p.Save(16*vg.Centimeter, 9*vg.Centimeter, file)
}

// scale returns what to multiply values by, and their unit.
func (d drawing) scale() (factor float64, unit string) {
	switch d.Unit {
	case "s":
		return 1000, "milliseconds"
	case "ops":
		return 1, "per second"
	}
	return 1, ""
}

// xys returns the points, or none if all are 0.
func (l line) xys(scale float64) plotter.XYs {
	var out plotter.XYs
	some := false
	for _, p := range l.Points {
		if math.IsNaN(p[1]) || math.IsInf(p[1], 0) {
			continue
		}
		some = some || p[1] != 0
		out = append(out, plotter.XY{X: p[0], Y: p[1] * scale})
	}
	if !some {
		return nil
	}
	return out
}
