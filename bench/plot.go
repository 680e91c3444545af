package main

import (
	"cmp"
	"fmt"
	"regexp"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
)

// pictures are what a report draws: of each group of figures whose name has the prefix, one figure for each profile.
var pictures = []struct{ name, title, group, figure string }{
	{"writes", "Write requests per TrainJob, by the size of a burst", "A burst of ",
		"write requests per TrainJob by Kueue, JobSet and who starts and builds"},
	{"cpu", "CPU seconds of the controllers per 1,000, by the size of a burst", "A burst of ",
		"CPU seconds of the same per 1,000"},
	{"throughput", "TrainJobs per second, by the size of a burst", "A burst of ", "TrainJobs per second"},
	{"start", "Admitted → started, p99, ms, by the size of a burst", "A burst of ", "admitted → started, p99, ms"},
	{"waiting", "Admitted → started, p99, ms, by how many wait", "While ", "admitted → started, p99, ms"},
}

// draw draws the pictures beside the page.
func (c *comparison) draw(base string) error {
	for _, picture := range pictures {
		p := plot.New()
		p.Title.Text = picture.title
		p.Y.Min = 0
		p.Legend.Top = true
		var groups []string
		for _, f := range c.Figures {
			if strings.HasPrefix(f.Group, picture.group) && f.Name == picture.figure {
				groups = append(groups, f.Group)
			}
		}
		if len(groups) == 0 {
			groups = append(groups, "not measured")
		}
		width := vg.Points(22)
		for i, peer := range peers {
			values := make(plotter.Values, len(groups))
			for j, group := range groups {
				if f := c.find(group, picture.figure); f != nil {
					values[j] = f.Values[peer]
				}
			}
			bars, err := plotter.NewBarChart(values, width)
			if err != nil {
				return fmt.Errorf("%s: %w", picture.name, err)
			}
			bars.Color, bars.LineStyle.Width, bars.Offset = plotutil.Color(i), 0, vg.Length(i-1)*width
			p.Add(bars)
			p.Legend.Add(peer, bars)
		}
		p.NominalX(sizes(groups)...)
		p.Y.Max *= 1.25 // room for the legend
		if err := p.Save(16*vg.Centimeter, 8*vg.Centimeter, base+"-"+picture.name+".svg"); err != nil {
			return err
		}
	}
	return nil
}

// sizes are the numbers by which groups differ.
func sizes(groups []string) []string {
	labels := make([]string, len(groups))
	for i, group := range groups {
		labels[i] = cmp.Or(regexp.MustCompile(`[0-9]+`).FindString(group), group)
	}
	return labels
}
