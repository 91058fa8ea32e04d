package pairs

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func parameters() []Parameter {
	return []Parameter{
		{"z", []any{"a", "b", "c"}},
		{"m.inner", []any{1, 2, 3, 4}},
		{"m.other", []any{false, true}},
		{"a", []any{nil, "x"}},
	}
}

// Each two alternatives are in a row together, unless a rule refuses them.
func TestRowsHaveEveryPair(t *testing.T) {
	rules := []Rule{
		{Refuses: func(at At) bool { return at("z") == "b" && at("a") == "x" }},
		{Refuses: func(at At) bool { return at("z") == "c" && at("m.inner") == 4 && at("m.other") == true }},
	}
	c := New(parameters(), rules)
	rows, left := c.Rows()
	if d := cmp.Diff([]Pair{{"a", "z", 1, 1}}, left); d != "" {
		t.Errorf("pairs that fit nowhere (-want +got):\n%s", d)
	}
	if len(rows) > 16 { // 12 is the least there can be
		t.Errorf("%d rows", len(rows))
	}
	covered := map[Pair]bool{}
	for _, row := range rows {
		if rule := c.Refusal(row); rule != nil {
			t.Errorf("row %v breaks a rule", row)
		}
		for one := range row {
			for other := range row {
				covered[pairOf(row, one, other)] = true
			}
		}
	}
	for _, pair := range c.pairs() {
		if !covered[pair] && pair != left[0] {
			t.Errorf("%v is in no row", pair)
		}
	}
	again, _ := New(parameters(), rules).Rows()
	if d := cmp.Diff(rows, again); d != "" {
		t.Errorf("another run gives other rows:\n%s", d)
	}
}

func TestParametersOfASchema(t *testing.T) {
	const schema = `{
		"definitions": {"flag": {"type": "boolean"}},
		"properties": {
			"size": {"enum": ["s", "m"]}, "on": {"$ref": "#/definitions/flag"}, "name": {"type": "string"},
			"part": {"type": "object", "properties": {"x": {"enum": [1]}}}
		}
	}`
	s, err := Parse([]byte(schema))
	if err != nil {
		t.Fatal(err)
	}
	got, err := s.Parameters(map[string][]any{"name": {"a"}})
	want := []Parameter{{"name", []any{"a"}}, {"on", []any{false, true}}, {"part.x", []any{1.0}}, {"size", []any{"s", "m"}}}
	if d := cmp.Diff(want, got); d != "" || err != nil {
		t.Errorf("error %v, parameters (-want +got):\n%s", err, d)
	}
	for says, samples := range map[string]map[string][]any{
		"the schema does not list what name may be: add samples of it": nil,
		"there are samples of gone, which the schema does not have":    {"name": {"a"}, "gone": {1}},
	} {
		if _, err := s.Parameters(samples); err == nil || err.Error() != says {
			t.Errorf("error %v, want %q", err, says)
		}
	}
}
