package experiment

import (
	"encoding"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/BurntSushi/toml"

	"github.com/ubcoll/ubcoll/internal/nearest"
)

// decode stores table, as the TOML parser read it, into e and reports every key that e does not have and every value
// that does not fit. The parser's own decoding stops at the first fault, which is why the walk is ours.
func decode(table map[string]any, e *Experiment) Faults {
	d := decoder{all: leaves(reflect.TypeOf(*e), "")}
	d.table(table, reflect.ValueOf(e).Elem(), nil)
	return d.faults
}

type decoder struct {
	faults Faults
	all    []string // every key there is, to hint at the right table
}

func (d *decoder) report(path []string, format string, args ...any) {
	d.faults = append(d.faults, Fault{Key: toml.Key(path).String(), Msg: fmt.Sprintf(format, args...), path: path})
}

func (d *decoder) table(table map[string]any, v reflect.Value, path []string) {
	for key, value := range table {
		path := append(slices.Clone(path), key)
		f := field(v, key)
		switch sub, isTable := value.(map[string]any); {
		case !f.IsValid():
			d.report(path, "unknown key%s", d.hint(key, v))
		case f.Kind() == reflect.Struct && isTable:
			d.table(sub, f, path)
		case f.Kind() == reflect.Struct:
			d.report(path, "must be a table, not %s", kindOf(value))
		default:
			if err := set(f, value); err != nil {
				d.report(path, "%v", err)
			}
		}
	}
}

// hint names the nearest key of the same table, or the same key of another table, or all keys of this one.
func (d *decoder) hint(key string, v reflect.Value) string {
	var here []string
	for i := range v.NumField() {
		here = append(here, tag(v.Type().Field(i)))
	}
	if h := nearest.Hint(key, here); h != "" {
		return h
	}
	for _, k := range d.all {
		if strings.HasSuffix(k, "."+key) {
			return ": did you mean " + k + "?"
		}
	}
	return " (known here: " + strings.Join(here, ", ") + ")"
}

// Set stores text in the value that key names, as a flag of a command line does: Set("allreduce.type", "half").
func (e *Experiment) Set(key, text string) error {
	v := reflect.ValueOf(e).Elem()
	for _, k := range strings.Split(key, ".") {
		if v.Kind() != reflect.Struct {
			v = reflect.Value{}
		} else {
			v = field(v, k)
		}
		if !v.IsValid() {
			return Faults{{Key: key, Msg: "unknown key" + nearest.Hint(key, leaves(reflect.TypeOf(*e), ""))}}
		}
	}
	var value any = text
	switch v.Interface().(type) { // these two are no strings in TOML
	case int:
		i, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return Faults{{Key: key, Msg: fmt.Sprintf("must be an integer, not %q", text)}}
		}
		value = i
	case bool:
		b, err := strconv.ParseBool(text)
		if err != nil {
			return Faults{{Key: key, Msg: fmt.Sprintf("must be true or false, not %q", text)}}
		}
		value = b
	}
	if err := set(v, value); err != nil {
		return Faults{{Key: key, Msg: err.Error()}}
	}
	return nil
}

// set stores a value of TOML in f, which is not a table.
func set(f reflect.Value, value any) error {
	if f.Kind() == reflect.Pointer { // a value that may be left out
		p := reflect.New(f.Type().Elem())
		if err := set(p.Elem(), value); err != nil {
			return err
		}
		f.Set(p)
		return nil
	}
	if u, ok := f.Addr().Interface().(encoding.TextUnmarshaler); ok {
		switch value := value.(type) {
		case string:
			return u.UnmarshalText([]byte(value))
		case int64:
			return u.UnmarshalText(strconv.AppendInt(nil, value, 10))
		}
		if _, ok := u.(*Size); ok {
			return fmt.Errorf("must be an integer, or a string as \"4M\", not %s", kindOf(value))
		}
		return fmt.Errorf("must be a string, not %s", kindOf(value))
	}
	switch f.Interface().(type) {
	case string:
		if s, ok := value.(string); ok {
			f.SetString(s)
			return nil
		}
		return fmt.Errorf("must be a string, not %s", kindOf(value))
	case int:
		if i, ok := value.(int64); ok && !f.OverflowInt(i) {
			f.SetInt(i)
			return nil
		}
		return fmt.Errorf("must be an integer, not %s", kindOf(value))
	case bool:
		if b, ok := value.(bool); ok {
			f.SetBool(b)
			return nil
		}
		return fmt.Errorf("must be true or false, not %s", kindOf(value))
	}
	return fmt.Errorf("values of type %v are not read yet", f.Type()) // a test decodes into every field
}

// kindOf is what people call the TOML value.
func kindOf(value any) string {
	switch value := value.(type) {
	case string:
		return "a string"
	case int64:
		return "the integer " + strconv.FormatInt(value, 10)
	case float64:
		return "a float"
	case bool:
		return "a boolean"
	case map[string]any:
		return "a table"
	case []any, []map[string]any:
		return "an array"
	}
	return "a date or time"
}

// field is the field of the struct v whose tag is key; not valid if there is none.
func field(v reflect.Value, key string) reflect.Value {
	for i := range v.NumField() {
		if tag(v.Type().Field(i)) == key {
			return v.Field(i)
		}
	}
	return reflect.Value{}
}

func tag(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("toml"), ",")
	return name
}

// leaves lists the dotted keys of t's values.
func leaves(t reflect.Type, prefix string) []string {
	var keys []string
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Type.Kind() == reflect.Struct {
			keys = append(keys, leaves(f.Type, prefix+tag(f)+".")...)
		} else {
			keys = append(keys, prefix+tag(f))
		}
	}
	return keys
}
