package main

import (
	"fmt"
	"strings"
)

// page collects the text of one page.
type page struct{ out strings.Builder }

// newPage starts a page with its title and what it is made from.
func newPage(title, from string) *page {
	p := &page{}
	fmt.Fprintf(&p.out, "# %s\n\n<!-- Made from %s by `make generate`: change it there. -->\n", title, from)
	return p
}

// String returns the page's text.
func (p *page) String() string { return p.out.String() }

// text adds paragraphs.
func (p *page) text(paragraphs ...string) {
	for _, t := range paragraphs {
		p.out.WriteString("\n" + t + "\n")
	}
}

// section adds a heading.
func (p *page) section(heading string) { p.text("## " + heading) }

// block adds text as it is.
func (p *page) block(text string) {
	p.out.WriteString("\n")
	for line := range strings.Lines(strings.TrimSpace(text) + "\n") {
		p.out.WriteString(strings.TrimRight("    "+line, " \n\t") + "\n")
	}
}

// table adds a table.
func (p *page) table(head []string, rows [][]string) {
	p.out.WriteString("\n" + row(head))
	p.out.WriteString("|" + strings.Repeat("---|", len(head)) + "\n")
	for _, cells := range rows {
		p.out.WriteString(row(cells))
	}
}

func row(cells []string) string {
	var out strings.Builder
	for _, c := range cells {
		c = strings.NewReplacer("|", `\|`, "\n", " ", "<", "&lt;").Replace(c)
		out.WriteString("| " + c + " ")
	}
	return strings.ReplaceAll(out.String(), "|  ", "| ") + "|\n"
}

// code returns text as code, and nothing for nothing.
func code(s string) string {
	if s == "" {
		return ""
	}
	return "`" + s + "`"
}
