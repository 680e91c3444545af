// Package page writes the views of kubectl signalbox dashboard as HTML. It knows neither clusters nor rights: what it
// is given is shown. All text is escaped by html/template; nothing is drawn with inline styles or scripts, so that the
// Content-Security-Policy allows none.
package page

import (
	"embed"
	"fmt"
	"hash/fnv"
	"html/template"
	"io"
	"io/fs"
	"net/url"
	"strings"
	"time"
	"unicode"
)

//go:embed templates
var templates embed.FS

//go:embed assets
var assets embed.FS

// Assets are the style, the script and htmx.
func Assets() fs.FS {
	sub, err := fs.Sub(assets, "assets")
	if err != nil {
		panic(err) // the folder is embedded
	}
	return sub
}

// Frame is what surrounds all views.
type Frame struct {
	// Release is Signalbox's version.
	Release string
	// Problem says why nothing is shown; "" if the view is to be loaded.
	Problem string
}

// Content is a view, with what is said above it.
type Content struct {
	Title string
	// Cluster is the context's name or the API server's address.
	Cluster string
	// Namespace is the one that is shown, if it has to be named because the user may not see all; "" otherwise.
	Namespace string
	// Path is where the view is, if that isn't where it was asked for; "" otherwise.
	Path string
	// Missing are rights that would show more.
	Missing []string
	// Lost is since when the API server hasn't answered; nil if it does.
	Lost *time.Time
	// Said is what an action has said.
	Said string
	// View is one of the views of this package.
	View View
}

// View is what a template of its name shows.
type View interface{ template() string }

var parsed = parse()

// labelled is a table of quota with its name.
type labelled struct {
	Label  string
	Quotas []Quota
	Lines  bool // whether there are lines, of what is borrowed and what waits
}

// parse reads the templates. A fault in them is one of the build, which the tests find.
func parse() *template.Template {
	return template.Must(template.New("").Funcs(template.FuncMap{
		"at":       at,
		"stamp":    stamp,
		"join":     strings.Join,
		"job":      JobPath,
		"is":       func(a, b string) bool { return a == b },
		"labelled": func(label string, of []Quota, lines bool) labelled { return labelled{label, of, lines} },
	}).ParseFS(templates, "templates/*.html"))
}

// Write writes the whole page, which loads a view.
func (f Frame) Write(w io.Writer) error { return write(w, "frame.html", f) }

// write writes a template, without control characters.
func write(w io.Writer, template string, data any) error {
	var text strings.Builder
	if err := parsed.ExecuteTemplate(&text, template, data); err != nil {
		return fmt.Errorf("drawing the page: %w", err)
	}
	_, err := io.WriteString(w, plain(text.String()))
	return err
}

// Write writes a view.
func (c Content) Write(w io.Writer) error {
	var body strings.Builder
	if err := parsed.ExecuteTemplate(&body, c.View.template(), c.View); err != nil {
		return fmt.Errorf("drawing %s: %w", c.Title, err)
	}
	return write(w, "content.html", struct {
		Content
		Body template.HTML
	}{c, template.HTML(body.String())}) // of a template
}

// Link is the path of a view, with what it is asked for.
func Link(path string, query ...string) string {
	values := url.Values{}
	for i := 0; i+1 < len(query); i += 2 {
		if query[i+1] != "" {
			values.Set(query[i], query[i+1])
		}
	}
	if len(values) == 0 {
		return path
	}
	return path + "?" + values.Encode()
}

// JobPath is the path of a TrainJob.
func JobPath(namespace, name string) string {
	return "/trainjobs/" + url.PathEscape(namespace) + "/" + url.PathEscape(name)
}

// at returns a time for machines. The script shows it in the viewer's zone.
func at(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// stamp returns a time for those without the script.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 UTC") }

// plain returns a text without control characters, by which what is shown or copied could be another thing than it
// seems.
func plain(text string) string {
	text = strings.ReplaceAll(text, "\r\n", "\n")
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' || unicode.Is(unicode.Bidi_Control, r) {
			return unicode.ReplacementChar
		}
		return r
	}, text)
}

// tints is how many colours the style has.
const tints = 10

// Tint returns the class of a colour that is always the same for a name.
func Tint(name string) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(name))
	return fmt.Sprintf("t%d", h.Sum32()%tints)
}
