package controllers

// States that Count tells apart although the rules are in force.
const (
	ContendedPod State = "contended"
	PreemptedPod State = "preempted"
)

// Count returns how many pods are in each state. A pod with rules that is preempted or contended, as its report then says, counts as that
// and not as programmed. Pods that could not be read yet are left out.
func (l *Ledger) Count() map[State]int {
	count := map[State]int{}
	l.each(func(_ string, e Entry) {
		if state := e.reported(); state != "" {
			count[state]++
		}
	})
	return count
}

// reported returns the state as the pod's report has it.
func (e Entry) reported() State {
	switch {
	case e.State != Programmed:
		return e.State
	case e.Preempted != "":
		return PreemptedPod
	case e.contention.contended():
		return ContendedPod
	}
	return Programmed
}
