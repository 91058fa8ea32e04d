package program

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"
)

// linkCost is how many packages are compiled in the time that linking one program takes: a second, on two cores.
const linkCost = 10

// meter says how much of a go command is done. `go build -v` writes the name of each package that it compiles, and none that is in Go's
// cache: after a build that was interrupted the estimate is too long at first.
type meter struct {
	start    time.Time
	packages map[string]bool
	programs int
	linked   func() int

	mu       sync.Mutex
	compiled int
}

func newMeter(packages []string, programs int, linked func() int) *meter {
	m := &meter{start: time.Now(), packages: make(map[string]bool, len(packages)), programs: programs, linked: linked}
	for _, p := range packages {
		m.packages[p] = true
	}
	return m
}

// Write counts the lines of `go build -v`.
func (m *meter) Write(p []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.compiled += bytes.Count(p, []byte("\n"))
	return len(p), nil
}

// report says what is done, and about how long the rest takes if it goes on as before.
func (m *meter) report(now time.Time) string {
	m.mu.Lock()
	compiled := m.compiled
	m.mu.Unlock()
	linked := m.linked()
	done, all := compiled+linked*linkCost, len(m.packages)+m.programs*linkCost
	text := fmt.Sprintf("%d of %d packages compiled, %d of %d programs linked", compiled, len(m.packages), linked, m.programs)
	if done <= all/20 || done >= all {
		return text
	}
	left := time.Duration(float64(now.Sub(m.start)) * float64(all-done) / float64(done))
	if left < time.Minute {
		return text + ", less than a minute left"
	}
	return fmt.Sprintf("%s, about %.0f min left", text, math.Ceil(left.Minutes()))
}

// withoutPackages leaves the compiler's errors in what `go build -v` has written.
func (m *meter) withoutPackages(text string) string {
	lines := strings.Split(text, "\n")
	return strings.Join(slices.DeleteFunc(lines, func(line string) bool { return m.packages[line] }), "\n")
}
