// Package debian is the one list of Debian packages that tests and cluster need. packages.txt is the list; hack/preflight.sh reads it, too.
package debian

import (
	_ "embed"
	"fmt"
	"os"
	"slices"
	"strings"
)

//go:embed packages.txt
var text string

// Package is needed for one file in it; the file's presence is the check, so that other distributions work too.
type Package struct {
	Name string
	// File may be several, separated by "|", of which one is enough.
	File  string
	Steps []Step
	Why   string
}

// Step says what wants the package.
type Step string

// The steps of kc. The others in packages.txt are the Makefile's.
const (
	Build  Step = "build"
	Images Step = "images"
	Run    Step = "up"
	CRIO   Step = "crio"
)

// Packages lists what some steps need, each package once.
func Packages(steps ...Step) []Package {
	return slices.DeleteFunc(parse(text), func(p Package) bool {
		return !slices.ContainsFunc(steps, func(s Step) bool { return slices.Contains(p.Steps, s) })
	})
}

// Names lists the names of what some steps need.
func Names(steps ...Step) []string {
	var names []string
	for _, p := range Packages(steps...) {
		names = append(names, p.Name)
	}
	return names
}

// Check names every package of the given steps whose file is missing, and the command that installs them.
func Check(steps ...Step) error { return missing(Packages(steps...)) }

// parse reads lines of: package, file, steps joined by commas, reason. A line with a field too few is a package without a reason.
func parse(text string) []Package {
	var packages []Package
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 3 || strings.HasPrefix(line, "#") {
			continue
		}
		p := Package{Name: fields[0], File: fields[1], Why: strings.Join(fields[3:], " ")}
		for step := range strings.SplitSeq(fields[2], ",") {
			p.Steps = append(p.Steps, Step(step))
		}
		packages = append(packages, p)
	}
	return packages
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// missing names all at once, so that one apt-get call is enough.
func missing(packages []Package) error {
	var names, why []string
	for _, p := range packages {
		if !slices.ContainsFunc(strings.Split(p.File, "|"), exists) {
			names = append(names, p.Name)
			why = append(why, fmt.Sprintf("  %s: no %s (%s)", p.Name, p.File, p.Why))
		}
	}
	if names == nil {
		return nil
	}
	return fmt.Errorf("missing packages:\n%s\ninstall them with: apt-get install --no-install-recommends -y %s",
		strings.Join(why, "\n"), strings.Join(names, " "))
}
