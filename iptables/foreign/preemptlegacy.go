package foreign

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Verdicts of the standard target of x_tables. Others that are not negative are offsets of chains.
const (
	legacyDrop   = -1
	legacyAccept = -2
	legacyQueue  = -4
	legacyReturn = -5
)

// legacy looks into the tables of x_tables that exist.
func (s *search) legacy() {
	for _, f := range legacyFamilies() {
		for _, table := range f.tables() {
			priority, ok := map[string]int32{"raw": legacyRaw, "mangle": legacyMangle, "nat": legacyNAT}[table]
			if !ok {
				continue
			}
			var before []uint32
			for _, hook := range []uint32{hookPrerouting, hookOutput} { // always in the same order: a new text is a new report
				if s.ours.before(hook, table == "nat", priority) {
					before = append(before, hook)
				}
			}
			if len(before) > 0 {
				s.legacyTable(f, table, before, priority)
			}
		}
	}
}

// legacyTable looks into one table, which has a priority, from some hooks.
func (s *search) legacyTable(f legacyFamily, table string, from []uint32, priority int32) {
	t, err := f.read(table)
	if errors.Is(err, errTable) {
		s.add("legacy iptables, table %s %s: %s", f.family, table, err)
	}
	if err != nil {
		return
	}
	for _, hook := range from {
		name := hookName(hook)
		w := walk{search: s, legacyTable: *t, table: table, base: int(t.hooks[hook]), last: s.ours.areLast(hook, priority), seen: map[int]bool{}}
		w.title = fmt.Sprintf("legacy iptables, table %s %s, chain %s", f.family, table, name)
		w.chain(w.base, name)
	}
}

// walk is the way of packets through one table from one hook.
type walk struct {
	*search
	legacyTable
	table string
	base  int  // where the built-in chain begins
	last  bool // no chain of ours comes later at the hook
	title string
	seen  map[int]bool
}

// chain looks at the rules of a chain that begins at an offset, and at the chains that it leads to.
func (w walk) chain(offset int, name string) {
	if w.seen[offset] || offset < 0 || offset > len(w.entries) {
		return
	}
	w.seen[offset] = true
	position := 0
	var targets []int
	for e := range w.each(w.entries[offset:]) {
		w.rules++
		position++
		target, info := e.target()
		if target == "ERROR" || w.full() {
			break // the next chain begins
		}
		r := w.rule(e, target, info)
		if offset == w.base && w.ours.isOwn(w.table, r.target) {
			if w.last {
				break
			}
			continue
		}
		if r.decides != "" {
			w.add("%s: rule %d of chain %s %s", w.title, position, name, r.decides)
		}
		if r.target != "" {
			targets = append(targets, int(binary.NativeEndian.Uint32(info)))
		}
		if r.ends {
			break
		}
	}
	for _, target := range targets {
		w.chain(target, w.names[target])
	}
}

// rule returns what an entry decides.
func (w walk) rule(e entry, target string, info []byte) (d decision) {
	if !w.ours.hasProtocol(e.protocol()) {
		return d
	}
	if target != "" {
		d.decides = xtTarget(w.ours, target, info)
		return d
	}
	if len(info) < 4 {
		return d
	}
	switch verdict := int32(binary.NativeEndian.Uint32(info)); { //nolint:gosec // the kernel's own negative number
	case verdict == legacyDrop:
		d.decides, d.ends = "drops", e.unconditional()
	case verdict == legacyQueue:
		d.decides, d.ends = "queues", e.unconditional()
	case verdict == legacyAccept, verdict == legacyReturn:
		d.ends = e.unconditional()
	case verdict >= 0:
		if d.target = w.names[int(verdict)]; d.target == "" {
			d.target = "?"
		}
	}
	return d
}
