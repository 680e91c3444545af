package main

import (
	"fmt"
	"image/color"
	"os"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
)

// A unit of Grafana's grid, which is 24 wide, on paper.
const (
	unitX = 1.05 * vg.Centimeter
	unitY = 0.75 * vg.Centimeter
)

// drawPanels draws the panels where the dashboard has them, with the seconds since from on every x axis.
func drawPanels(board dashboard, panels [][]series, from time.Time) (*vgimg.Canvas, error) {
	bottom := 0
	for _, p := range board.Panels {
		bottom = max(bottom, p.GridPos.Y+p.GridPos.H)
	}
	canvas := vgimg.NewWith(vgimg.UseWH(24*unitX, vg.Length(bottom)*unitY), vgimg.UseDPI(110))
	for i, panel := range board.Panels {
		p := plot.New()
		p.Title.Text = panel.Title
		p.Title.TextStyle.Font.Size, p.Legend.TextStyle.Font.Size = 9, 6
		p.X.Tick.Label.Font.Size, p.Y.Tick.Label.Font.Size = 6, 6
		p.Legend.Top, p.Legend.Left = true, true
		p.Legend.ThumbnailWidth = 8
		p.Add(plotter.NewGrid())
		top := 0.0
		for j, s := range panels[i] {
			points := make(plotter.XYs, len(s.values))
			for k := range s.values {
				points[k].X, points[k].Y = s.times[k]-float64(from.Unix()), s.values[k]
				top = max(top, s.values[k])
			}
			line, err := plotter.NewLine(points)
			if err != nil {
				return nil, fmt.Errorf("panel %q: %w", panel.Title, err)
			}
			line.Color, line.Width = plotutil.Color(j), 1
			p.Add(line)
			if j < 8 {
				p.Legend.Add(s.name, line)
			}
		}
		p.Y.Min, p.Y.Max = 0, max(top*1.45, 1e-3) // room for the legend
		g := panel.GridPos
		area := draw.Canvas{Canvas: canvas, Rectangle: vg.Rectangle{
			Min: vg.Point{X: vg.Length(g.X)*unitX + 4, Y: vg.Length(bottom-g.Y-g.H)*unitY + 4},
			Max: vg.Point{X: vg.Length(g.X+g.W)*unitX - 4, Y: vg.Length(bottom-g.Y)*unitY - 4},
		}}
		area.SetColor(color.White)
		p.Draw(area)
	}
	return canvas, nil
}

func paint(board dashboard, panels [][]series, from time.Time, path string) error {
	canvas, err := drawPanels(board, panels, from)
	if err != nil {
		return err
	}
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	if _, err := (vgimg.PngCanvas{Canvas: canvas}).WriteTo(file); err != nil {
		file.Close()
		return err
	}
	return file.Close()
}
