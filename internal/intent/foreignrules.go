package intent

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"
)

// KeyForeignRules is an annotation of namespaces. A pod's own has no effect: a pod must not switch off for itself what its operator relies on.
const KeyForeignRules = "pod-network-controller.istio.io/foreign-rules"

// SettingForeignRules says what becomes of a pod in which foreign rules may decide about packets before ours: it fails, or it stays ready with a
// warning.
const (
	SettingForeignRules = "foreign-rules"
	ForeignRulesFail    = "fail"
	ForeignRulesWarn    = "warn"
)

// AcceptsForeignRules reports whether such rules are only a warning for the pods of a namespace. ns is nil if it is not known. A value that is neither
// accepts nothing: Of returns the error.
func AcceptsForeignRules(ns *corev1.Namespace, defaults Defaults) bool {
	r := reader{namespace: annotationsOf(ns), defaults: defaults}
	return r.foreignRules() && len(r.errs) == 0
}

// foreignRules reads the setting: the namespace's, or else the flag's.
func (r *reader) foreignRules() (accepts bool) {
	if _, own := r.annotations[KeyForeignRules]; own {
		r.note("annotation %s of the pod has no effect: only its namespace's counts", KeyForeignRules)
	}
	ofNamespace := *r
	ofNamespace.annotations = nil
	return take(r, SettingForeignRules, ofNamespace.lookup(KeyForeignRules, SettingForeignRules), oneOf(ForeignRulesFail, ForeignRulesWarn))
}

// foreignSetting returns the setting of a pod.
func foreignSetting(ns *corev1.Namespace, defaults Defaults, from sources) Setting {
	out := Setting{Name: SettingForeignRules, Value: ForeignRulesFail, Source: cmp.Or(from[SettingForeignRules], fromDefault)}
	if AcceptsForeignRules(ns, defaults) {
		out.Value = ForeignRulesWarn
	}
	return out
}
