package page

import "fmt"

// Bar is quota, or the GPUs of a node, as a row of segments. Its width is 100.
type Bar struct {
	// Label says it for those who don't see it.
	Label    string
	Segments []Segment
	// Mark is where the nominal quota ends; 0 for none.
	Mark float64
}

// Segment is a part of a bar.
type Segment struct {
	X, Width float64
	// Class is how it looks.
	Class string
	// Title says what it is; Href leads to it, "" for nowhere.
	Title, Href string
}

// Part is an amount that becomes a segment.
type Part struct {
	Amount      float64
	Class       string
	Title, Href string
}

// narrowest is the width below which a part isn't drawn by itself.
const narrowest = 0.6

// NewBar draws parts one after the other, so that total is as wide as the bar, and more is cut off. mark is where the
// nominal quota ends, as an amount. Parts that are too small to be seen are drawn together with those beside them of
// their kind.
func NewBar(label string, total, mark float64, parts []Part) Bar {
	b := Bar{Label: label}
	if total <= 0 {
		return b
	}
	if mark > 0 && mark < total {
		b.Mark = 100 * mark / total
	}
	x, small := 0.0, 0
	for _, p := range parts {
		width := min(100*p.Amount/total, 100-x)
		if width <= 0 {
			continue
		}
		last := len(b.Segments) - 1
		if width < narrowest && small > 0 && last >= 0 && p.Href != "" {
			small++
			b.Segments[last].Width += width
			b.Segments[last].Title, b.Segments[last].Href = fmt.Sprintf("%d TrainJobs", small), ""
		} else {
			small = 0
			if width < narrowest && p.Href != "" {
				small = 1
			}
			b.Segments = append(b.Segments, Segment{X: x, Width: width, Class: p.Class, Title: p.Title, Href: p.Href})
		}
		x += width
	}
	return b
}
