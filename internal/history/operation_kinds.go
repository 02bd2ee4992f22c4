package history

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/english"
)

// describe says what an operation does to a thing, once in the past tense
// ("attached it to …") and once as an infinitive ("attach it to …"). The
// parameter it is the name of the thing. The events are those that the
// operation caused, as far as the history shows them.
type describe func(it string, o cyborg.Operation, events []cyborg.Event) (did, do string)

// operationKindTable has a line for each kind of operation.
var operationKindTable = map[cyborg.OperationKind]describe{
	cyborg.OperationProvision: provision,
	cyborg.OperationProgram:   program,
	cyborg.OperationAttach:    attach,
	cyborg.OperationDetach:    detach,
	cyborg.OperationConfigure: configure,
	cyborg.OperationRetire:    verb("took", "take", "%s out of service"),
	cyborg.OperationBind:      bind,
	cyborg.OperationUnbind:    verb("unbound", "unbind", "%s"),
	cyborg.OperationWhitelist: whitelist,
	cyborg.OperationRescue:    rescue,
	cyborg.OperationClean:     clean,
	cyborg.OperationPartition: partition,
}

// phrases returns the phrases of the operation's kind, or some that suit a kind
// that only a newer server has.
func phrases(it string, o cyborg.Operation, events []cyborg.Event) (did, do string) {
	if of, ok := operationKindTable[o.Kind]; ok {
		return of(it, o, events)
	}
	return run(it, o, events)
}

// verb describes a kind for which a verb is enough. The format places the name
// of the thing behind the verb.
func verb(past, infinitive, format string) describe {
	return func(it string, _ cyborg.Operation, _ []cyborg.Event) (did, do string) {
		return both(past, infinitive, format, it)
	}
}

// both puts the same behind both forms of a verb.
func both(past, infinitive, format string, args ...any) (did, do string) {
	rest := fmt.Sprintf(format, args...)
	return past + " " + rest, infinitive + " " + rest
}

// run describes an operation for which this table has no words of its own.
func run(it string, o cyborg.Operation, _ []cyborg.Event) (did, do string) {
	return both("ran", "run", "%s on %s", o.Kind, it)
}

// provision leaves out a name by which the sentence calls it anyway.
func provision(it string, o cyborg.Operation, _ []cyborg.Event) (did, do string) {
	as := ""
	if name := inputOf[cyborg.ProvisionRequest](o).Name; name != "" && it != "accelerator "+name {
		as = " as " + name
	}
	return both("took", "take", "%s into service%s", it, as)
}

// program names the previous image only where the events have one, and says where the new
// one takes effect later.
func program(it string, o cyborg.Operation, events []cyborg.Event) (did, do string) {
	image := inputOf[cyborg.ProgramRequest](o).Image
	rest := it + " with " + image.Source
	if image.ID != "" {
		rest += " as " + image.ID
	}
	if image.WholeDevice {
		rest += ", the whole device"
	}

	if i := slices.IndexFunc(events, func(e cyborg.Event) bool { return e.Axis == cyborg.AxisBitstream && e.From != "" }); i >= 0 {
		rest += ", over " + events[i].From
	}
	if until, ok := o.Result["pending"].(string); ok {
		rest += ", which takes effect " + cyborg.Activation(until).Text(o.Host)
	}

	return both("programmed", "program", "%s", rest)
}

func attach(it string, o cyborg.Operation, _ []cyborg.Event) (did, do string) {
	return both("attached", "attach", "%s to %s", it, inputOf[cyborg.AttachRequest](o).Holder)
}

// detach says where no host was asked: the device may still be in use there.
func detach(it string, o cyborg.Operation, events []cyborg.Event) (did, do string) {
	if inputOf[cyborg.DetachRequest](o).Force {
		return both("freed", "free", "%s from %s by force, in the records alone", it, formerHolders(o, events))
	}
	return both("took", "take", "%s back from %s", it, formerHolders(o, events))
}

// formerHolders names who lost what a detach took: the holder that the request
// named, or else the holders in the events.
func formerHolders(o cyborg.Operation, events []cyborg.Event) string {
	if holder := inputOf[cyborg.DetachRequest](o).Holder; holder != nil {
		return holder.String()
	}

	var from []string
	for _, event := range events {
		if name := holderPhrase(event.From); event.Axis == cyborg.AxisHolder && name != "" && !slices.Contains(from, name) {
			from = append(from, name)
		}
	}

	if len(from) == 0 {
		return "whoever had it"
	}

	return english.Some(from)
}

// configure is about a backend, and so it names no accelerator.
func configure(it string, o cyborg.Operation, events []cyborg.Event) (did, do string) {
	r := inputOf[cyborg.ConfigureRequest](o)
	backend := "backend " + r.Backend + " on " + r.Host

	switch r.Action {
	case cyborg.ConfigureInstall:
		return both("installed", "install", "driver %s as %s", cmp.Or(r.Driver, r.Backend), backend)
	case cyborg.ConfigureUninstall:
		return both("uninstalled", "uninstall", "%s", backend)
	case cyborg.ConfigureUpdate:
		return both("updated", "update", "the options of %s", backend)
	}

	return run(it, o, events)
}

func bind(it string, o cyborg.Operation, _ []cyborg.Event) (did, do string) {
	return both("bound", "bind", "%s to %s", it, inputOf[cyborg.BindRequest](o).Holder)
}

// whitelist has the number only: a whitelist may have a hundred devices.
func whitelist(_ string, o cyborg.Operation, _ []cyborg.Event) (did, do string) {
	devices := len(inputOf[cyborg.WhitelistRequest](o).Devices)
	if devices == 0 {
		return both("removed", "remove", "the whitelist of Nova on %s", o.Host)
	}
	return both("gave", "give", "%s on %s to Nova to give out", english.Count(devices, "accelerator"), o.Host)
}

// rescue does not name the instances: the run of the operation finds them.
func rescue(_ string, o cyborg.Operation, _ []cyborg.Event) (did, do string) {
	return both("had Nova reboot", "have Nova reboot", "the instances that may be without their accelerators since %s booted",
		inputOf[cyborg.RescueRequest](o).Host)
}

// clean leaves the reason of somebody who declares it to the clause of each handle.
func clean(it string, o cyborg.Operation, _ []cyborg.Event) (did, do string) {
	if inputOf[cyborg.CleanRequest](o).Declared != "" {
		return both("declared", "declare", "%s clean", it)
	}
	return both("cleaned", "clean", "%s", it)
}

// partition says into which parts. A layout that only a newer server can read is left out;
// the empty one is the whole device.
func partition(it string, o cyborg.Operation, _ []cyborg.Event) (did, do string) {
	layout := inputOf[cyborg.PartitionRequest](o).Layout
	switch {
	case layout == nil:
		return both("divided", "divide", "%s anew", it)
	case layout.Equal(nil):
		return both("made", "make", "%s whole", it)
	}
	return both("divided", "divide", "%s into %s", it, partsPhrase(layout))
}

// partsPhrase says how many parts of each kind there are: "4 × vf".
func partsPhrase(layout cyborg.Layout) string {
	layout = layout.Normal()
	var parts []string
	for _, kind := range slices.Sorted(maps.Keys(layout)) {
		parts = append(parts, fmt.Sprintf("%d × %s", layout[kind], kind))
	}
	return english.Some(parts)
}

// inputOf decodes what an operation was asked for. It returns the zero value
// where a newer server has sent a request that this program does not know.
func inputOf[T any](o cyborg.Operation) (request T) {
	if text, err := json.Marshal(o.Input); err != nil || json.Unmarshal(text, &request) != nil {
		return *new(T)
	}
	return request
}
