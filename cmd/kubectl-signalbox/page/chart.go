package page

import (
	"fmt"
	"strings"
	"time"
)

// Span is a time on a timeline.
type Span struct {
	// Class is past, runs, will or wait.
	Class       string
	From, To    time.Time
	Title, Href string
	// Break is what ended it before its time; "" for nothing.
	Break string
}

// Lane is a row of a timeline.
type Lane struct {
	Name, Href string
	Spans      []Span
}

// Timeline is what ran, runs and will run on a flavor.
type Timeline struct {
	Flavor string
	Lanes  []Lane
	// More is how many lanes are left out.
	More int
}

// Axis is the time that timelines show.
type Axis struct {
	From, To, Now time.Time
}

// Place returns where a time is on the axis, from 0 to 100.
func (a Axis) Place(t time.Time) float64 {
	of := a.To.Sub(a.From)
	if of <= 0 {
		return 0
	}
	return min(max(100*float64(t.Sub(a.From))/float64(of), 0), 100)
}

// Width returns how wide a span is, so that it can be seen.
func (a Axis) Width(s Span) float64 { return max(a.Place(s.To)-a.Place(s.From), 0.3) }

// Ticks are times along the axis, at most eight.
func (a Axis) Ticks() (all []time.Time) {
	step := time.Minute
	for _, wider := range []time.Duration{5 * time.Minute, 15 * time.Minute, time.Hour, 3 * time.Hour, 6 * time.Hour,
		24 * time.Hour, 7 * 24 * time.Hour, 30 * 24 * time.Hour} {
		if a.To.Sub(a.From) > 8*step {
			step = wider
		}
	}
	for t := a.From.Truncate(step).Add(step); t.Before(a.To) && len(all) < 12; t = t.Add(step) {
		all = append(all, t)
	}
	return all
}

// Curve is a metric over time, as it was seen.
type Curve struct {
	Name   string
	Points []Point
	// Marks are checkpoints and restarts.
	Marks []Mark
}

// Point is a value at a time.
type Point struct {
	Time  time.Time
	Value float64
}

// Mark is a time with a name.
type Mark struct {
	Time        time.Time
	Class, Text string
}

// axis returns the time of a curve.
func (c Curve) axis() Axis {
	if len(c.Points) == 0 {
		return Axis{}
	}
	return Axis{From: c.Points[0].Time, To: c.Points[len(c.Points)-1].Time}
}

// X returns where a time is, from 0 to 100.
func (c Curve) X(t time.Time) float64 { return c.axis().Place(t) }

// Bounds returns the least and the greatest value.
func (c Curve) Bounds() (low, high float64) {
	for i, p := range c.Points {
		if i == 0 {
			low, high = p.Value, p.Value
		}
		low, high = min(low, p.Value), max(high, p.Value)
	}
	return low, high
}

// Low and High are the bounds, for templates.
func (c Curve) Low() float64 {
	low, _ := c.Bounds()
	return low
}

// High is the greatest value.
func (c Curve) High() float64 {
	_, high := c.Bounds()
	return high
}

// Last is the last value.
func (c Curve) Last() float64 { return c.Points[len(c.Points)-1].Value }

// Line returns the points of an SVG's polyline in a field of 100 by 30.
func (c Curve) Line() string {
	low, high := c.Bounds()
	low, of := low/2, high/2-low/2 // the difference of the greatest numbers is infinite
	if of == 0 {
		of = 1
	}
	points := make([]string, len(c.Points))
	for i, p := range c.Points {
		points[i] = fmt.Sprintf("%.2f,%.2f", c.X(p.Time), 29-28*(p.Value/2-low)/of)
	}
	return strings.Join(points, " ")
}

// shown are the marks within the curve.
func (c Curve) shown() (marks []Mark) {
	a := c.axis()
	for _, m := range c.Marks {
		if !m.Time.Before(a.From) && !m.Time.After(a.To) {
			marks = append(marks, m)
		}
	}
	return marks
}

// Shown are the marks within the curve, for templates.
func (c Curve) Shown() []Mark { return c.shown() }
