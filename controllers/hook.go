package controllers

// Hook names where a call of Ensure comes from.
type Hook string

// The hooks. Watch and Verify are the agent's own; the container runtime calls NRI, and the CNI chain calls CNI.
const (
	Watch  Hook = "watch"
	Verify Hook = "verify"
	NRI    Hook = "nri"
	CNI    Hook = "cni"
)

// early reports whether the hook calls before the pod's first container exists.
func (e Hook) early() bool { return e == NRI || e == CNI }

// Result is the outcome of Ensure, and the value of a metric's label.
type Result string

// The results.
const (
	Changed   Result = "changed"
	Unchanged Result = "unchanged"
	Skipped   Result = "skipped"
	Failed    Result = "failed"
)
