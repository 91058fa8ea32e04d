package intent

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func allowing(names string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "agents", Annotations: map[string]string{KeyEgressNames: names}}}
}

func TestEgressNames_listThatCanBeRead_isWhatItSays(t *testing.T) {
	for name, c := range map[string]struct {
		value string
		want  []EgressName
	}{
		"nothing":              {"", nil},
		"blanks":               {" \n", nil},
		"a name":               {"example.com", []EgressName{{"example.com", false}}},
		"upper case":           {"API.Example.COM", []EgressName{{"api.example.com", false}}},
		"a dot at the end":     {"example.com.", []EgressName{{"example.com", false}}},
		"names below":          {"*.example.com", []EgressName{{"example.com", true}}},
		"names below a domain": {"*.com", []EgressName{{"com", true}}},
		"both, and sorted":     {"www.example.org,*.example.com,example.com", []EgressName{{"example.com", true}, {"example.com", false}, {"www.example.org", false}}},
		"a block of YAML":      {"example.com,\n  www.example.org\n", []EgressName{{"example.com", false}, {"www.example.org", false}}},
		"punycode":             {"xn--bcher-kva.example", []EgressName{{"xn--bcher-kva.example", false}}},
		"an underscore":        {"a_b.example", []EgressName{{"a_b.example", false}}},
		"digits before":        {"1.2.3.example", []EgressName{{"1.2.3.example", false}}},
	} {
		if got, err := EgressNames(allowing(c.value)); err != nil || cmp.Diff(c.want, got) != "" {
			t.Errorf("%s: %v, error %v", name, got, err)
		}
	}
	for _, ns := range []*corev1.Namespace{nil, {}} {
		if got, err := EgressNames(ns); got != nil || err != nil {
			t.Errorf("without the annotation: %v, error %v", got, err)
		}
	}
	many := make([]string, maxEgressNames)
	for i := range many {
		many[i] = fmt.Sprintf("n%d.example", i)
	}
	if got, err := EgressNames(allowing(strings.Join(many, ","))); err != nil || len(got) != maxEgressNames {
		t.Errorf("of 10,000 names there are %d, error %v", len(got), err)
	}
}

// Whatever cannot be meant is named with its place, and nothing of the list counts.
func TestEgressNames_listThatIsWrong_isNamed(t *testing.T) {
	for name, c := range map[string]struct{ value, says string }{
		"everything":            {"*", `"*" is not allowed here`},
		"a * in a label":        {"a*.example.com", `item 1, "a*.example.com", has a * that is not the whole first label`},
		"a * further on":        {"a.*.com", "has a * that is not the whole first label"},
		"two *":                 {"*.*.com", "has a * that is not the whole first label"},
		"a * alone below":       {"*.", "has a * that is not the whole first label"},
		"IPv4":                  {"example.com,192.0.2.1", `item 2, "192.0.2.1", is an address`},
		"IPv6":                  {"2001:db8::1", "is an address"},
		"IPv6 in brackets":      {"[2001:db8::1]", "is an address"},
		"a short address":       {"127.1", "ends with a number, as addresses do"},
		"a number":              {"*.1", "ends with a number, as addresses do"},
		"a CIDR":                {"192.0.2.0/24", "is no name of the DNS"},
		"a port":                {"example.com:443", "has a port or a scheme"},
		"a URL":                 {"https://example.com", "has a port or a scheme"},
		"a path":                {"example.com/x", "is no name of the DNS"},
		"one label":             {"reviews", "has no dot"},
		"blanks inside":         {"example.com example.org", "is no name of the DNS"},
		"a new line inside":     {"example.com\nexample.org", `"example.com\nexample.org"`},
		"a directive":           {"example.com\n  server x 192.0.2.1", "is no name of the DNS"},
		"a quote":               {"a'b.example", "is no name of the DNS"},
		"double quotes":         {`a"b.example`, "is no name of the DNS"},
		"a comment":             {"a#b.example", "is no name of the DNS"},
		"an escape":             {"a\x1b[0m.example", `"a\x1b[0m.example"`},
		"a zero byte":           {"a\x00.example", "is no name of the DNS"},
		"a format":              {"%[env(X)].example", "is no name of the DNS"},
		"a backslash":           {`a\.example`, "is no name of the DNS"},
		"not ASCII":             {"bücher.example", "is not ASCII: write it as it is in the DNS (xn--...)"},
		"the Kelvin sign":       {"\u212aelvin.example", "is not ASCII"}, // whose lower case is a letter of ASCII
		"an empty item":         {"example.com,,example.org", "item 2 is empty"},
		"a comma at the end":    {"example.com,", "item 2 is empty"},
		"an empty label":        {"a..example", "is no name of the DNS"},
		"a dot first":           {".example.com", "is no name of the DNS"},
		"two dots at the end":   {"example.com..", "is no name of the DNS"},
		"a dash first":          {"-f.example", "is no name of the DNS"},
		"a long label":          {strings.Repeat("a", 64) + ".example", "is no name of the DNS"},
		"a long name":           {strings.Repeat("a.", 125) + "example", "is no name of the DNS"},
		"more than 10,000 name": {strings.Repeat("a.example,", maxEgressNames) + "a.example", "10001 items are more than the 10000"},
	} {
		got, err := EgressNames(allowing(c.value))
		prefix := "annotation " + KeyEgressNames + " of namespace agents: value " + shown(c.value) + ": "
		if got != nil || err == nil || !strings.HasPrefix(err.Error(), prefix) || !strings.Contains(err.Error(), c.says) || !strings.HasSuffix(err.Error(), ": want "+wantEgressNames) {
			t.Errorf("%s: %v, error %v", name, got, err)
		}
	}
}

// What is read consists of nothing that any syntax takes for more than a word.
func FuzzEgressNames(f *testing.F) {
	f.Add("example.com,*.example.org")
	f.Add("a\nb")
	f.Fuzz(func(t *testing.T, value string) {
		names, err := EgressNames(allowing(value))
		for _, n := range names {
			if err != nil || n.Name == "" || strings.Trim(n.Name, "abcdefghijklmnopqrstuvwxyz0123456789-_.") != "" || strings.Trim(n.Name[:1], "-.") == "" {
				t.Errorf("%q allows %+v, error %v", value, n, err)
			}
		}
	})
}

// A pod cannot allow itself names, and is told so. A wrong list takes no rules away.
func TestOf_egressNames_leaveTheRulesAlone(t *testing.T) {
	pod, ns := asking(nil)
	want, err := Of(pod, ns, config())
	if err != nil {
		t.Fatal(err)
	}
	pod.Annotations = map[string]string{KeyInitialize: "true", KeyEgressNames: "evil.example"}
	ns.Annotations[KeyEgressNames] = "not a list"
	got, err := Of(pod, ns, config())
	if err != nil || got.Spec.Hash() != want.Spec.Hash() || !strings.Contains(strings.Join(got.Notes, " "), KeyEgressNames+" of the pod has no effect") {
		t.Errorf("%+v, error %v", got, err)
	}
}
