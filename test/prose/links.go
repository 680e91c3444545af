package main

import (
	"fmt"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"
)

// site is all pages, by their paths from root.
type site struct {
	root  string
	pages map[string]*page
	order []*page
}

func newSite(root string) *site { return &site{root: root, pages: map[string]*page{}} }

func (s *site) add(file string, content []byte) *page {
	p := newPage(file, content)
	s.pages[file] = p
	s.order = append(s.order, p)
	return p
}

// links counts the links of all pages.
func (s *site) links() (n int) {
	for _, p := range s.order {
		n += len(p.links)
	}
	return n
}

// brokenLinks are the links to files and headings that don't exist.
func (s *site) brokenLinks() (all []string) {
	for _, p := range s.order {
		for _, l := range p.links {
			if strings.Contains(l.to, "://") || strings.HasPrefix(l.to, "mailto:") {
				continue
			}
			if problem := s.check(p, l.to); problem != "" {
				all = append(all, fmt.Sprintf("%s:%d: link %s: %s", p.file, l.line, l.to, problem))
			}
		}
	}
	return all
}

// check returns what is wrong with a link of a page, or "".
func (s *site) check(p *page, to string) string {
	file, anchor, _ := strings.Cut(to, "#")
	target := p.file
	if file != "" {
		target = path.Join(path.Dir(p.file), file)
	}
	if _, err := os.Stat(filepath.Join(s.root, target)); err != nil {
		return "there is no such file"
	}
	other := s.pages[target]
	if anchor == "" {
		return ""
	}
	if other == nil {
		content, err := os.ReadFile(filepath.Join(s.root, target))
		if err != nil {
			return err.Error()
		}
		other = newPage(target, content)
	}
	if !other.anchors[anchor] {
		return "the page has no such heading"
	}
	return ""
}

// unreachable are the links to other sites that don't answer with success.
func (s *site) unreachable() (all []string) {
	client := &http.Client{Timeout: 20 * time.Second}
	asked := map[string]bool{}
	for _, p := range s.order {
		for _, l := range p.links {
			address, _, _ := strings.Cut(l.to, "#")
			if !strings.HasPrefix(address, "http") || asked[address] {
				continue
			}
			asked[address] = true
			answer, err := client.Get(address)
			if err != nil {
				all = append(all, fmt.Sprintf("%s:%d: link %s: %v", p.file, l.line, l.to, err))
				continue
			}
			answer.Body.Close()
			if answer.StatusCode >= http.StatusBadRequest {
				all = append(all, fmt.Sprintf("%s:%d: link %s: %s", p.file, l.line, l.to, answer.Status))
			}
		}
	}
	return all
}
