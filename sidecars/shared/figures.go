package shared

// Result is what became of a configuration that the agent has tried.
type Result string

// The results. A configuration from which pods were left out counts as refused, and once more for what became of the rest.
const (
	Applied     Result = "applied"     // the proxy answers its version
	Refused     Result = "refused"     // the templates or the proxy's check did not pass it
	Unconfirmed Result = "unconfirmed" // the proxy did not answer its version in time
	Failed      Result = "failed"      // it could not be written, or the runtime did not pass the check or the signal on
)

// Figures are how a profile's proxy and its pods are on this node.
type Figures struct {
	// Served are the pods that the proxy serves. Refused pods need a change of theirs or of the profile first. Waiting pods need none.
	Served, Refused, Waiting int
	// Running reports whether the proxy's container runs. Newest reports whether the proxy has confirmed the profile's present version, without
	// pods that have left.
	Running, Newest bool
	// Reloads counts configurations by what became of them, with zeros.
	Reloads map[Result]uint64
}

// Figures returns those of each profile that has pods on this node, or whose proxy runs there.
func (m *Manager) Figures() map[string]Figures {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[string]Figures{}
	for name, g := range m.groups {
		if f := g.figuresNow(); f.Running || f.Served+f.Refused+f.Waiting > 0 {
			out[name] = f
		}
	}
	return out
}
